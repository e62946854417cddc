package digitalocean_test

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/providers/digitalocean"
)

func TestATunnelEndsWithASuspendAndADeletion(t *testing.T) {
	t.Parallel()
	for what, end := range map[string]func(*script, *digitalocean.Driver) error{
		"suspend": func(s *script, d *digitalocean.Driver) error {
			s.only(getAt, 200, at("READY"))
			then(s, "PAUSED")
			s.on(pauseAt, 204, "")
			_, err := d.Suspend(t.Context(), refOf("sess-1", "w"))
			return err
		},
		"the service suspended it": func(s *script, d *digitalocean.Driver) error {
			s.only(getAt, 200, at("PAUSED"))
			_, err := d.Suspend(t.Context(), refOf("sess-1", "w"))
			return err
		},
		"delete": func(s *script, d *digitalocean.Driver) error {
			s.only(getAt, 200, at("READY"))
			then(s, "DESTROYED")
			s.on(deleteAt, 204, "")
			s.on("GET "+configsAt, 200, `{"configs":[]}`)
			_, err := d.Delete(t.Context(), refOf("sess-1", "w"))
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			to := guest(t)
			s, url := forwarded(t, func(ctx context.Context, c *websocket.Conn) { pipe(ctx, c, to) })
			d := s.driver(t, func(o *digitalocean.Options) { o.BaseURL = url })
			found, err := d.Endpoint(t.Context(), refOf("sess-1", "w"))
			require.NoError(t, err)
			address := strings.TrimPrefix(found.URL, "http://")
			open, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
			require.NoError(t, err)
			defer open.Close()
			require.NoError(t, ask(open))
			require.NoError(t, end(s, d))
			_, err = new(net.Dialer).DialContext(t.Context(), "tcp", address)
			require.Error(t, err, "nothing listens there any more")
			require.NoError(t, open.SetReadDeadline(time.Now().Add(20*time.Second)))
			_, err = open.Read(make([]byte, 1))
			require.Error(t, err)
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the connection that was open has ended")
		})
	}
}
