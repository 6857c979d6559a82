// Pusher's server library for Go, and a receiver of webhooks. The app's id, key and secret in; JSON lines out. {"server": address},
// {"auth": socket_id, "channel": channel, "user": user}, {"sign_in": socket_id, "user": user}, {"trigger": channel, "data": data},
// {"batch": channel}, {"channels": prefix}, {"users": channel} and {"webhooks": true} on its input are done.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"

	"github.com/pusher/pusher-http-go/v5"
)

func say(kind string, what map[string]any) {
	what["kind"] = kind
	line := must(json.Marshal(what))
	fmt.Println(string(line))
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// Answers of the library's signatures are JSON.
func parsed(answer []byte, err error) map[string]any {
	var fields map[string]any
	if err := json.Unmarshal(must(answer, err), &fields); err != nil {
		panic(err)
	}
	return fields
}

func main() {
	server := pusher.Client{AppID: os.Args[1], Key: os.Args[2], Secret: os.Args[3]}
	var lock sync.Mutex
	events, areValid := []pusher.WebhookEvent{}, true
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	go http.Serve(listener, http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		webhook, err := server.Webhook(request.Header, must(io.ReadAll(request.Body)))
		lock.Lock()
		defer lock.Unlock()
		areValid = areValid && err == nil
		if err == nil {
			events = append(events, webhook.Events...)
		}
	}))
	say("listens", map[string]any{"port": listener.Addr().(*net.TCPAddr).Port})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var command map[string]any
		if err := json.Unmarshal(lines.Bytes(), &command); err != nil {
			panic(err)
		}
		text := func(name string) string {
			value, _ := command[name].(string)
			return value
		}
		for name := range command {
			switch name {
			case "server":
				server.Host = text("server")
			case "auth":
				asked := url.Values{"socket_id": {text("auth")}, "channel_name": {text("channel")}}.Encode()
				if strings.HasPrefix(text("channel"), "presence-") {
					say("auth", parsed(server.AuthorizePresenceChannel([]byte(asked), pusher.MemberData{UserID: text("user")})))
				} else {
					say("auth", parsed(server.AuthorizePrivateChannel([]byte(asked))))
				}
			case "sign_in":
				asked := url.Values{"socket_id": {text("sign_in")}}.Encode()
				say("sign_in", parsed(server.AuthenticateUser([]byte(asked), map[string]any{"id": text("user")})))
			case "trigger":
				if err := server.Trigger(text("trigger"), "x", command["data"]); err != nil {
					panic(err)
				}
				say("triggered", map[string]any{})
			case "batch":
				one := pusher.Event{Channel: text("batch"), Name: "batch-1", Data: map[string]int{"n": 1}}
				two := pusher.Event{Channel: text("batch"), Name: "batch-2", Data: map[string]int{"n": 2}}
				must(server.TriggerBatch([]pusher.Event{one, two}))
				say("triggered", map[string]any{})
			case "channels":
				prefix, info := text("channels"), "user_count"
				list := must(server.Channels(pusher.ChannelsParams{FilterByPrefix: &prefix, Info: &info}))
				say("channels", map[string]any{"channels": list.Channels})
			case "users":
				list := must(server.GetChannelUsers(text("users")))
				say("users", map[string]any{"users": list.List})
			case "webhooks":
				lock.Lock()
				say("webhooks", map[string]any{"events": events, "are_valid": areValid})
				lock.Unlock()
			}
		}
	}
}
