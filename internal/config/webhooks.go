package config

import (
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

const (
	maxWebhooks    = 8
	defaultWebhook = "default"
)

// Webhook is one receiver of notices and events.
type Webhook struct {
	Name string
	// URL may hold a token in its query: show Address instead.
	URL string
	// Keys are references to one key, or to two while they are changed over.
	Keys []string
	// Events are the kinds that it takes; all when empty.
	Events    []box.EventKind
	PlainHTTP string // refuse or allow
}

// Address returns the URL as it may be shown: without its query.
func (w Webhook) Address() string {
	u, err := url.Parse(w.URL)
	if err != nil {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// webhook builds one webhook. Errors never repeat its URL.
func (v *values) webhook(name string) (Webhook, error) {
	given := v.named[sectionWebhooks][name]
	field := func(setting string) string { return v.namedField(sectionWebhooks, name, setting) }
	w := Webhook{Name: name, URL: given[settingURL].text, Keys: given[settingKeys].list, PlainHTTP: "refuse"}
	if g, ok := given[settingPlainHTTP]; ok {
		w.PlainHTTP = g.text
	}
	if w.PlainHTTP != "refuse" && w.PlainHTTP != "allow" {
		return w, box.Invalidf(field(settingPlainHTTP), "%q is not known; use \"refuse\" or \"allow\"", printable(w.PlainHTTP))
	}
	if err := checkWebhookURL(field(settingURL), w.URL, w.PlainHTTP == "allow"); err != nil {
		return w, err
	}
	if len(w.Keys) < 1 || len(w.Keys) > 2 {
		return w, box.Invalidf(field(settingKeys), "needs one reference, or two while the key is changed over; nothing is sent unsigned")
	}
	for _, ref := range w.Keys {
		if _, _, err := splitRef(ref); err != nil { // not repeated: it may be the key itself
			return w, box.Invalidf(field(settingKeys), "%s", refForms)
		}
	}
	if g, ok := given[settingEvents]; ok && len(g.list) == 0 {
		return w, box.Invalidf(field(settingEvents), "is empty; leave it out for all events, or take the webhook out")
	}
	for _, kind := range given[settingEvents].list {
		if !slices.Contains(box.EventKinds(), box.EventKind(kind)) {
			return w, box.Invalidf(field(settingEvents), "%q is not a kind of event; there are %s", printable(kind), eventNames())
		}
		w.Events = append(w.Events, box.EventKind(kind))
	}
	return w, nil
}

func eventNames() string {
	var names []string
	for _, kind := range box.EventKinds() {
		names = append(names, string(kind))
	}
	return strings.Join(names, ", ")
}

func checkWebhookURL(field, text string, plain bool) error {
	u, err := url.Parse(text)
	switch {
	case text == "":
		return box.Invalidf(field, "is not set; write it like https://canvas.example/hooks/boxkeeper")
	case err != nil || u.Host == "" || u.Hostname() == "" || (u.Scheme != "https" && u.Scheme != "http"):
		return box.Invalidf(field, "is not a URL of a webhook; write it like https://canvas.example/hooks/boxkeeper")
	case u.User != nil:
		return box.Invalidf(field, "holds a user or password; requests are signed instead, see docs/events.md")
	case u.Fragment != "":
		return box.Invalidf(field, "holds a fragment (#), which is never sent; leave it out")
	case u.Scheme == "http" && !plain && !loopback(u.Hostname()):
		return box.Invalidf(field, "is http:// to another machine, where everyone on the way can read it; use https://, or set plain_http = \"allow\"")
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
