package providers_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

func TestKeysAreDerivedFilledInAndReserved(t *testing.T) {
	t.Parallel()
	cloud := fakebox.New(nil)
	spy := &spying{Driver: cloud.Driver(installation)}
	p := over(t, spy)
	ref := made(t, p, "keys")
	k := keys(t)
	if got := spy.start.SessionKey; got != k.SessionKey("keys", 1) || len(got) != 64 {
		t.Error("the box was not started with its session key")
	}
	if got := spy.start.SecretEnv["OH_SECRET_KEY"]; got != k.EncryptionKey("keys", 1) || len(got) != 64 {
		t.Error("the box was not started with its encryption key")
	}
	at, err := p.Endpoint(t.Context(), ref)
	if err != nil || at.SessionKey != k.SessionKey("keys", 1) {
		t.Errorf("the endpoint lacks the key: %v", err)
	}
	for field, s := range map[string]driver.Start{
		"env.OH_SECRET_KEY":             {Env: map[string]string{"OH_SECRET_KEY": "x"}},
		"secrets.OH_SESSION_API_KEYS_0": {SecretEnv: map[string]box.Secret{"OH_SESSION_API_KEYS_0": "x"}},
		"env.BOXKEEPER_BOX":             {Env: map[string]string{"BOXKEEPER_BOX": "x"}},
		"session_key":                   {SessionKey: "x"},
		"env.A":                         {Env: map[string]string{"A": "x"}, SecretEnv: map[string]box.Secret{"A": "y"}},
	} {
		_, err := p.Create(t.Context(), spec("keys"), 1, s)
		e, ok := errors.AsType[*box.Error](err)
		if !ok || e.Class != box.ClassInvalid || e.Field != field {
			t.Errorf("%v, want Invalid for %s", err, field)
		}
	}
	seen := map[box.Secret]string{}
	for _, ws := range []string{"a", "b", "a-1"} {
		for epoch := 1; epoch <= 11; epoch++ {
			for what, key := range map[string]box.Secret{"session": k.SessionKey(ws, epoch), "encryption": k.EncryptionKey(ws, epoch)} {
				id := fmt.Sprint(what, ws, epoch)
				if other, twice := seen[key]; twice {
					t.Errorf("%s and %s have the same key", id, other)
				}
				seen[key] = id
			}
		}
	}
}

type spying struct {
	*fakebox.Driver
	start driver.Start
	fail  error
	say   string
}

func (s *spying) Create(ctx context.Context, req driver.CreateRequest) (box.Observation, error) {
	s.start = req.Start
	if s.fail != nil {
		return box.Observation{}, s.fail
	}
	seen, err := s.Driver.Create(ctx, req)
	seen.Evidence = s.say
	return seen, err
}

func TestKeySourceDoesNotShowItsSecret(t *testing.T) {
	t.Parallel()
	const canary = "canary-installation-secret-0123456789"
	k, err := providers.NewKeySource(canary)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]any{"keys": k})
	if err != nil {
		t.Fatal(err)
	}
	p, err := providers.New("fake", fakebox.New(nil).Driver(installation), &providers.Options{Installation: installation, Keys: k})
	if err != nil {
		t.Fatal(err)
	}
	out := fmt.Sprintf("%v %+v %#v %v %+v %#v", k, k, k, p, p, *p) + string(text)
	if strings.Contains(out, "canary") {
		t.Errorf("the secret shows in %s", out)
	}
	if _, err := providers.NewKeySource("short"); box.ClassOf(err) != box.ClassInvalid || strings.Contains(err.Error(), "short") {
		t.Errorf("a short secret: %v", err)
	}
}

func TestErrorsAndEvidenceTellNoSecret(t *testing.T) {
	t.Parallel()
	const token = `se"cret/to ken+1`
	quoted, err := json.Marshal(token)
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{
		"plain": token, "json": string(quoted), "query": "se%22cret%2Fto+ken%2B1",
		"path": "se%22cret%2Fto%20ken+1", "base64": base64.StdEncoding.EncodeToString([]byte(token)),
	}
	for name, text := range texts {
		spy := &spying{Driver: fakebox.New(nil).Driver(installation), say: "env " + text}
		p := over(t, spy)
		start := driver.Start{SecretEnv: map[string]box.Secret{"TOKEN": token, "SHORT": "ken"}}
		seen, err := p.Create(t.Context(), spec("quiet"), 1, start)
		if err != nil || strings.Contains(seen.Evidence, text) {
			t.Errorf("%s: evidence %q, %v", name, seen.Evidence, err)
		}
		inner := fmt.Errorf("request %s: %w", text, context.Canceled)
		spy.fail = box.Errorf(box.ClassUnavailable, "create: %w", inner)
		_, err = p.Create(t.Context(), spec("quiet"), 1, start)
		wantClass(t, name, err, box.ClassCanceled)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: the cause is lost: %v", name, err)
		}
		for cause := err; cause != nil; cause = errors.Unwrap(cause) {
			if strings.Contains(fmt.Sprintf("%v %+v", cause, cause), text) {
				t.Errorf("%s: the secret shows in %v", name, cause)
			}
		}
		// The box's own key is passed to the driver too.
		spy.fail = errors.New("bad key " + spy.start.SessionKey.Reveal())
		_, err = p.Create(t.Context(), spec("quiet"), 1, start)
		if strings.Contains(err.Error(), spy.start.SessionKey.Reveal()) {
			t.Errorf("the session key shows in %v", err)
		}
	}
}
