//go:build !linux

package reclaim

import (
	"context"

	"github.com/openhands/boxkeeper/box"
)

// tree stands in where the kernel cannot keep a look-up on one mount and off
// links: nothing is planned and nothing deleted.
type tree struct{}

func openTree(string) (*tree, error) { return &tree{}, nil }

func (*tree) usable() error {
	return box.Errorf(box.ClassUnsupported, "freeing space needs Linux: this system cannot rule out links and mounts inside a cache")
}

func (*tree) genuine() error { return nil }

func (*tree) close() {}

func (*tree) realPath() string { return "" }

func (r *Reclaimer) plan(context.Context, scope) (*record, error) { return nil, r.tree.usable() }

func (r *Reclaimer) candidates(context.Context, *Selection) error { return r.tree.usable() }

// Recognise recognises nothing here.
func (*Catalogue) Recognise(context.Context, string, string) (rule, why string) {
	return "", (*tree)(nil).usable().Error()
}

func (r *Reclaimer) apply(context.Context, string) (box.ReclaimReport, error) {
	return box.ReclaimReport{}, r.tree.usable()
}

func (*Reclaimer) sweep() {}

func (r *Reclaimer) begin(context.Context, string) (*record, error) { return nil, r.tree.usable() }

func (r *Reclaimer) usedBytes(context.Context) (int64, error) { return 0, r.tree.usable() }
