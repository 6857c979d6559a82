// HTTP/2 with Go's `net/http`: publishes, reads the history, then follows a topic over as many connections as it takes. The server's URL and
// the file with its root in, JSON lines out.
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

func say(what map[string]any) {
	line, _ := json.Marshal(what)
	fmt.Println(string(line))
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	url := os.Args[1]
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(must(os.ReadFile(os.Args[2])))
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: roots},
		ForceAttemptHTTP2: true,
	}}
	published := must(client.Post(url+"/pub/news", "text/plain", strings.NewReader("one")))
	published.Body.Close()
	say(map[string]any{"kind": "published", "status": published.StatusCode, "version": published.Proto})
	history := must(client.Get(url + "/history/news"))
	var kept []struct{ Data string }
	if err := json.NewDecoder(history.Body).Decode(&kept); err != nil {
		panic(err)
	}
	history.Body.Close()
	data := []string{}
	for _, message := range kept {
		data = append(data, message.Data)
	}
	say(map[string]any{"kind": "history", "data": data})
	position := ""
	for ; ; time.Sleep(50 * time.Millisecond) {
		request := must(http.NewRequest("GET", url+"/sub/news?since=oldest", nil))
		if position != "" {
			request = must(http.NewRequest("GET", url+"/sub/news", nil))
			request.Header.Set("Last-Event-ID", position)
		}
		request.Header.Set("Accept", "text/event-stream")
		answer, err := client.Do(request)
		if err != nil {
			continue
		}
		text, has := "", false
		for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
			field, value, _ := strings.Cut(lines.Text(), ": ")
			switch {
			case field == "id":
				position = value
			case field == "data":
				text, has = value, true
			case field == "" && has:
				say(map[string]any{"kind": "message", "id": position, "data": text})
				has = false
			}
		}
		answer.Body.Close()
	}
}
