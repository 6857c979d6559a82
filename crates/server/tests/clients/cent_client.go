// gocent, with the arguments, the input and the output of cent_client.py. It has no refresh.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/centrifugal/gocent/v3"
)

var background = context.Background()

type members = map[string]any

func say(kind string, what members) {
	what["kind"] = kind
	line, err := json.Marshal(what)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func data(publications []gocent.Publication) []json.RawMessage {
	all := []json.RawMessage{}
	for _, publication := range publications {
		all = append(all, publication.Data)
	}
	return all
}

func history(client *gocent.Client, channel string) {
	kept := must(client.History(background, channel, gocent.WithLimit(gocent.NoLimit)))
	say("history", members{"data": data(kept.Publications), "offset": kept.Offset})
}

func main() {
	url, key := os.Args[1], os.Args[2]
	// The default is a second, which is too short beside other tests.
	patient := &http.Client{Timeout: time.Minute}
	client := gocent.New(gocent.Config{Addr: url, Key: key, HTTPClient: patient})
	published := must(client.Publish(background, "a", []byte(`{"n": 1}`)))
	say("published", members{"offset": published.Offset, "epoch": published.Epoch})
	must(client.Broadcast(background, []string{"a", "b"}, []byte(`{"n": 2}`)))
	history(client, "a")
	names := []string{}
	for name := range must(client.Channels(background, gocent.WithPattern("*"))).Channels {
		names = append(names, name)
	}
	slices.Sort(names)
	say("channels", members{"names": names})
	say("info", members{"nodes": len(must(client.Info(background)).Nodes)})
	pipe := client.Pipe()
	check(pipe.AddPublish("a", []byte("3")))
	check(pipe.AddHistory("a", gocent.WithLimit(1), gocent.WithReverse(true)))
	var last gocent.HistoryResult
	check(json.Unmarshal(must(client.SendPipe(background, pipe))[1].Result, &last))
	say("batch", members{"data": data(last.Publications)})
	check(client.HistoryRemove(background, "a"))
	history(client, "a")
	check(client.Unsubscribe(background, "a", "ann"))
	bufio.NewReader(os.Stdin).ReadString('\n')
	bye := gocent.WithDisconnect(&gocent.Disconnect{Code: 4500, Reason: "bye"})
	check(client.Disconnect(background, "ann", bye))
	var answer *gocent.Error
	if _, err := client.Presence(background, "a"); errors.As(err, &answer) {
		say("refused", members{"code": answer.Code})
	}
	var status gocent.ErrStatusCode
	wrong := gocent.New(gocent.Config{Addr: url, Key: key[1:], HTTPClient: patient})
	if _, err := wrong.Info(background); errors.As(err, &status) && status.Code == 401 {
		say("unauthorized", members{})
	}
}
