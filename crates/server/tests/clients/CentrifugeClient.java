// centrifuge-java, with the arguments, the input and the output of centrifuge_client.mjs. It has protobuf only.
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import io.github.centrifugal.centrifuge.*;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;

class CentrifugeClient {
    static synchronized void say(String kind, Map<String, Object> members) {
        JsonObject line = new JsonObject();
        line.addProperty("kind", kind);
        members.forEach((name, member) -> {
            if (member instanceof JsonElement element) line.add(name, element);
            else if (member instanceof Boolean bool) line.addProperty(name, bool);
            else if (member instanceof Number number) line.addProperty(name, number);
            else line.addProperty(name, String.valueOf(member));
        });
        System.out.println(line);
    }

    static JsonElement value(byte[] data) {
        return JsonParser.parseString(new String(data, StandardCharsets.UTF_8));
    }

    static byte[] encoded(JsonElement data) {
        return data.toString().getBytes(StandardCharsets.UTF_8);
    }

    static void refused(Throwable error) {
        if (error instanceof ReplyError answer) say("refused", Map.of("code", answer.getCode()));
        else say("trouble", Map.of("reason", error));
    }

    static class Events extends EventListener {
        @Override public void onConnected(Client client, ConnectedEvent event) {
            say("connected", Map.of());
        }

        @Override public void onConnecting(Client client, ConnectingEvent event) {
            say("connecting", Map.of("code", event.getCode(), "reason", event.getReason()));
        }

        @Override public void onDisconnected(Client client, DisconnectedEvent event) {
            say("disconnected", Map.of("code", event.getCode(), "reason", event.getReason()));
        }
    }

    static class SubscriptionEvents extends SubscriptionEventListener {
        @Override public void onPublication(Subscription it, PublicationEvent event) {
            say("message", Map.of("channel", it.getChannel(), "data", value(event.getData()), "offset", event.getOffset()));
        }

        @Override public void onSubscribed(Subscription it, SubscribedEvent event) {
            say("subscribed", Map.of("channel", it.getChannel(), "recovered", event.getRecovered(), "wasRecovering", event.wasRecovering()));
        }

        @Override public void onUnsubscribed(Subscription it, UnsubscribedEvent event) {
            say("unsubscribed", Map.of("channel", it.getChannel(), "code", event.getCode(), "reason", event.getReason()));
        }

        @Override public void onJoin(Subscription it, JoinEvent event) {
            say("join", Map.of("channel", it.getChannel(), "client", event.getInfo().getClient()));
        }

        @Override public void onLeave(Subscription it, LeaveEvent event) {
            say("leave", Map.of("channel", it.getChannel(), "client", event.getInfo().getClient()));
        }
    }

    static void subscribe(Client client, String channel) throws Exception {
        Subscription subscription = client.getSubscription(channel);
        if (subscription == null) {
            SubscriptionOptions options = new SubscriptionOptions();
            options.setJoinLeave(true);
            options.setMinResubscribeDelay(50);
            subscription = client.newSubscription(channel, options, new SubscriptionEvents());
        }
        subscription.subscribe();
    }

    static void act(Client client, JsonObject command) throws Exception {
        if (command.has("publish")) {
            client.publish(command.get("publish").getAsString(), encoded(command.get("data")), (error, result) -> {
                if (error != null) refused(error);
                else say("published", Map.of());
            });
        }
        if (command.has("unsubscribe")) client.getSubscription(command.get("unsubscribe").getAsString()).unsubscribe();
        if (command.has("subscribe")) subscribe(client, command.get("subscribe").getAsString());
        if (command.has("rpc")) {
            client.rpc(command.get("rpc").getAsString(), encoded(new JsonObject()), (error, result) -> {
                if (error != null) refused(error);
                else say("called", Map.of());
            });
        }
        if (command.has("history")) {
            HistoryOptions all = new HistoryOptions.Builder().withLimit(-1).build();
            client.history(command.get("history").getAsString(), all, (error, page) -> {
                if (error != null) {
                    refused(error);
                    return;
                }
                JsonArray data = new JsonArray();
                for (Publication publication : page.getPublications()) data.add(value(publication.getData()));
                say("history", Map.of("data", data));
            });
        }
    }

    public static void main(String[] args) throws Exception {
        Options options = new Options();
        options.setToken(args[2]);
        options.setMinReconnectDelay(50);
        options.setMaxReconnectDelay(200);
        Client client = new Client("ws://" + args[0] + "/connection/websocket", options, new Events());
        for (int at = 3; at < args.length; at++) subscribe(client, args[at]);
        client.connect();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = lines.readLine()) != null; ) act(client, JsonParser.parseString(line).getAsJsonObject());
        System.exit(0);
    }
}
