package daemon

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"go.temporal.io/sdk/client"
	"go.uber.org/zap"

	"github.com/openhands/boxkeeper/internal/cli"
	"github.com/openhands/boxkeeper/internal/engine"
	"github.com/openhands/boxkeeper/internal/telemetry"
)

const (
	lookForLost = 10 * time.Second // the start does not wait longer for it
	namedLost   = 10
)

// lost returns the workspaces that the export store knows and this engine does
// not: its data was lost, or somebody ended their workflows.
func (n *node) lost(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, lookForLost)
	defer cancel()
	c := n.client
	if c == nil { // the workers are elsewhere
		var err error
		c, err = client.DialContext(ctx, client.Options{
			HostPort: n.engine.Address(), Namespace: engine.DefaultNamespace,
			Logger: telemetry.TemporalLogger(quieter(n.parts.Logger.Named("sdk"), zap.WarnLevel)),
		})
		if err != nil {
			return nil
		}
		defer c.Close()
	}
	return cli.Unwatched(ctx, n.parts.Store, c)
}

// tellLost says which boxes nobody watches.
func tellLost(out io.Writer, lost []string) {
	if len(lost) == 0 {
		return
	}
	names := strings.Join(lost[:min(len(lost), namedLost)], ", ")
	if more := len(lost) - namedLost; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	_, _ = fmt.Fprintf(out, "boxkeeperd: %d in the ledgers without a workflow, so nobody watches their boxes: %s; \"boxkeeperd fleet rebuild\" brings them back\n", len(lost), names)
}
