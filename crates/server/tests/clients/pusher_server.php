<?php
// Pusher's server library for PHP, and a receiver of webhooks. The app's id, key and secret in; JSON lines out. {"server": address},
// {"auth": socket_id, "channel": channel, "user": user}, {"sign_in": socket_id, "user": user}, {"trigger": channel, "data": data},
// {"batch": channel}, {"channels": prefix}, {"users": channel} and {"webhooks": true} on its input are done.

require 'GuzzleHttp/autoload.php';
require 'Psr/Log/autoload.php';
spl_autoload_register(function ($name) {
    $file = getenv('CRORE_CLIENT_TESTS') . '/pusher-http-php/src/' . str_replace('Pusher\\', '', $name) . '.php';
    if (is_file($file)) {
        require $file;
    }
});

[, $id, $key, $secret] = $argv;

function say(string $kind, $what = []): void
{
    echo json_encode(['kind' => $kind] + (array) $what), "\n";
}

function connected_to(string $address): Pusher\Pusher
{
    global $id, $key, $secret;
    [$host, $port] = explode(':', $address);
    return new Pusher\Pusher($key, $secret, $id, ['host' => $host, 'port' => (int) $port, 'useTLS' => false, 'scheme' => 'http']);
}

/** Reads a request of a webhook, answers it, and returns its events; null if the signature is wrong. */
function take_webhook($connection): ?array
{
    $headers = [];
    for (fgets($connection); ($line = trim(fgets($connection))) !== '';) {
        [$name, $value] = explode(': ', $line, 2);
        $headers[ucwords(strtolower($name), '-')] = $value;
    }
    $body = stream_get_contents($connection, (int) $headers['Content-Length']);
    fwrite($connection, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    fclose($connection);
    try {
        return connected_to('localhost:1')->webhook($headers, $body)->get_events();
    } catch (Pusher\PusherException $error) {
        return null;
    }
}

$listener = stream_socket_server('tcp://127.0.0.1:0');
say('listens', ['port' => (int) substr(strrchr(stream_socket_get_name($listener, false), ':'), 1)]);
$events = [];
$are_valid = true;
$server = null;
stream_set_blocking(STDIN, false);
while (!feof(STDIN)) {
    [$readable, $writable, $other] = [[STDIN, $listener], null, null];
    stream_select($readable, $writable, $other, null);
    if (in_array($listener, $readable, true)) {
        $taken = take_webhook(stream_socket_accept($listener));
        $are_valid = $are_valid && $taken !== null;
        array_push($events, ...($taken ?? []));
    }
    while (($line = fgets(STDIN)) !== false) {
        $command = json_decode($line, true);
        if (isset($command['server'])) {
            $server = connected_to($command['server']);
        }
        if (isset($command['auth'])) {
            ['auth' => $socket, 'channel' => $channel, 'user' => $user] = $command;
            $is_presence = str_starts_with($channel, 'presence-');
            $auth = $is_presence ? $server->authorizePresenceChannel($channel, $socket, $user) : $server->authorizeChannel($channel, $socket);
            say('auth', json_decode($auth));
        }
        if (isset($command['sign_in'])) {
            say('sign_in', json_decode($server->authenticateUser($command['sign_in'], ['id' => $command['user']])));
        }
        if (isset($command['trigger'])) {
            $server->trigger($command['trigger'], 'x', $command['data']);
            say('triggered');
        }
        if (isset($command['batch'])) {
            $event = fn ($n) => ['channel' => $command['batch'], 'name' => "batch-$n", 'data' => ['n' => $n]];
            $server->triggerBatch([$event(1), $event(2)]);
            say('triggered');
        }
        if (isset($command['channels'])) {
            $params = ['filter_by_prefix' => $command['channels'], 'info' => 'user_count'];
            say('channels', ['channels' => $server->getChannels($params)->channels]);
        }
        if (isset($command['users'])) {
            say('users', ['users' => $server->getPresenceUsers($command['users'])->users]);
        }
        if (isset($command['webhooks'])) {
            say('webhooks', ['events' => $events, 'are_valid' => $are_valid]);
        }
    }
}
