package server

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPassesComeAtTheStartAndThenOnlyWhereThereIsSomethingToKeepTo(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		again bool
		want  int
	}{
		"nothing to keep to": {false, 1},
		"a budget":           {true, 1 + 12},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var log bytes.Buffer
				passes := 0
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					maintain(ctx, func(context.Context) error {
						passes++
						return errors.New("no room to look")
					}, row.again, slog.New(slog.NewTextHandler(&log, nil)))
				}()
				time.Sleep(time.Hour + time.Minute)
				synctest.Wait()
				require.Equal(t, row.want, passes, "a failed pass ends nothing")
				require.Contains(t, log.String(), "no room to look")
				cancel()
				<-ended
				require.Equal(t, row.want, passes)
			})
		})
	}
}
