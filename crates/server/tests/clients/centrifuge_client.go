// centrifuge-go, with the arguments, the input and the output of centrifuge_client.mjs.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/centrifugal/centrifuge-go"
)

type members = map[string]any

func say(kind string, what members) {
	what["kind"] = kind
	line, err := json.Marshal(what)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func refused(err error) {
	var answer *centrifuge.Error
	if !errors.As(err, &answer) {
		panic(err)
	}
	say("refused", members{"code": answer.Code})
}

func subscribe(client *centrifuge.Client, channel string) {
	subscription, found := client.GetSubscription(channel)
	if !found {
		var err error
		subscription, err = client.NewSubscription(channel, centrifuge.SubscriptionConfig{
			JoinLeave:           true,
			MinResubscribeDelay: 50 * time.Millisecond,
		})
		if err != nil {
			panic(err)
		}
		subscription.OnPublication(func(event centrifuge.PublicationEvent) {
			say("message", members{"channel": channel, "data": json.RawMessage(event.Data), "offset": event.Offset})
		})
		subscription.OnSubscribed(func(event centrifuge.SubscribedEvent) {
			say("subscribed", members{"channel": channel, "recovered": event.Recovered, "wasRecovering": event.WasRecovering})
		})
		subscription.OnUnsubscribed(func(event centrifuge.UnsubscribedEvent) {
			say("unsubscribed", members{"channel": channel, "code": event.Code, "reason": event.Reason})
		})
		subscription.OnJoin(func(event centrifuge.JoinEvent) {
			say("join", members{"channel": channel, "client": event.Client})
		})
		subscription.OnLeave(func(event centrifuge.LeaveEvent) {
			say("leave", members{"channel": channel, "client": event.Client})
		})
	}
	if err := subscription.Subscribe(); err != nil {
		panic(err)
	}
}

type command struct {
	Publish, Unsubscribe, Subscribe, Rpc, History *string
	Data                                          json.RawMessage
}

func act(client *centrifuge.Client, what command) {
	background := context.Background()
	switch {
	case what.Publish != nil:
		if _, err := client.Publish(background, *what.Publish, what.Data); err != nil {
			refused(err)
			return
		}
		say("published", members{})
	case what.Unsubscribe != nil:
		subscription, _ := client.GetSubscription(*what.Unsubscribe)
		if err := subscription.Unsubscribe(); err != nil {
			panic(err)
		}
	case what.Subscribe != nil:
		subscribe(client, *what.Subscribe)
	case what.Rpc != nil:
		if _, err := client.RPC(background, *what.Rpc, []byte("{}")); err != nil {
			refused(err)
			return
		}
		say("called", members{})
	case what.History != nil:
		page, err := client.History(background, *what.History, centrifuge.WithHistoryLimit(-1))
		if err != nil {
			refused(err)
			return
		}
		data := []json.RawMessage{}
		for _, publication := range page.Publications {
			data = append(data, publication.Data)
		}
		say("history", members{"data": data})
	}
}

func main() {
	address, form, token, channels := os.Args[1], os.Args[2], os.Args[3], os.Args[4:]
	connect := centrifuge.NewJsonClient
	if form == "protobuf" {
		connect = centrifuge.NewProtobufClient
	}
	client := connect("ws://"+address+"/connection/websocket", centrifuge.Config{
		Token:             token,
		MinReconnectDelay: 50 * time.Millisecond,
		MaxReconnectDelay: 200 * time.Millisecond,
	})
	client.OnConnected(func(centrifuge.ConnectedEvent) { say("connected", members{}) })
	client.OnConnecting(func(event centrifuge.ConnectingEvent) {
		say("connecting", members{"code": event.Code, "reason": event.Reason})
	})
	client.OnDisconnected(func(event centrifuge.DisconnectedEvent) {
		say("disconnected", members{"code": event.Code, "reason": event.Reason})
	})
	for _, channel := range channels {
		subscribe(client, channel)
	}
	if err := client.Connect(); err != nil {
		panic(err)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var what command
		if err := json.Unmarshal(lines.Bytes(), &what); err != nil {
			panic(err)
		}
		act(client, what)
	}
}
