package agentservertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"time"
)

// Toxiproxy is a bad network in front of a server: the program of that name,
// which cuts, slows and stops connections. It is built from tools/toxiproxy.
type Toxiproxy struct {
	URL string // of what is behind it

	api     string
	program *exec.Cmd
	toxics  []string // that are set
}

// Toxic is one thing that is wrong with connections, as the program names it:
// "limit_data" with "bytes", "bandwidth" with "rate" in kB/s, "reset_peer" with
// "timeout" in ms, "slicer", "latency", "timeout".
type Toxic struct {
	Type string `json:"type"`
	// Toxicity is the part of the connections that it befalls.
	Toxicity   float64        `json:"toxicity"`
	Attributes map[string]int `json:"attributes"`
}

// StartToxiproxy runs the program until Close, before the server at a host and
// port.
func StartToxiproxy(ctx context.Context, program, upstream string) (*Toxiproxy, error) {
	var last error
	for range 5 { // somebody may take the port before the program does
		p, err := tryToxiproxy(ctx, program, upstream)
		if err == nil {
			return p, nil
		}
		last = err
	}
	return nil, last
}

func tryToxiproxy(ctx context.Context, program, upstream string) (*Toxiproxy, error) {
	free, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // local and instant
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(free.Addr().String())
	_ = free.Close()
	if err != nil {
		return nil, err
	}
	p := &Toxiproxy{api: "http://" + host + ":" + port, program: exec.Command(program, "-host", host, "-port", port)} //nolint:noctx // ended by Close
	if err := p.program.Start(); err != nil {
		return nil, err
	}
	var made struct {
		Listen string `json:"listen"`
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err = p.call(ctx, http.MethodPost, "/proxies", map[string]any{"name": "box", "listen": host + ":0", "upstream": upstream, "enabled": true}, &made)
		if err == nil {
			p.URL = "http://" + made.Listen
			return p, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			p.Close()
			return nil, fmt.Errorf("start %s: %w", program, err)
		}
	}
}

// Set makes these the only things that are wrong; none mends the network.
func (p *Toxiproxy) Set(ctx context.Context, toxics ...Toxic) error {
	for _, name := range p.toxics {
		if err := p.call(ctx, http.MethodDelete, "/proxies/box/toxics/"+name, nil, nil); err != nil {
			return err
		}
	}
	p.toxics = nil
	for i, one := range toxics {
		var made struct {
			Name string `json:"name"`
		}
		what := struct {
			Toxic
			Name   string `json:"name"`
			Stream string `json:"stream"`
		}{one, fmt.Sprintf("%d-%s", i, one.Type), "downstream"}
		if err := p.call(ctx, http.MethodPost, "/proxies/box/toxics", what, &made); err != nil {
			return err
		}
		p.toxics = append(p.toxics, made.Name)
	}
	return nil
}

// Close ends it, and all connections through it.
func (p *Toxiproxy) Close() {
	_ = p.program.Process.Kill()
	_ = p.program.Wait() // that it was killed
}

func (p *Toxiproxy) call(ctx context.Context, method, path string, body, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, p.api+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode >= http.StatusBadRequest {
		return errors.New(method + " " + path + ": " + response.Status)
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(answer)
}
