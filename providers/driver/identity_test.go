package driver_test

import (
	"strings"
	"testing"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

const installation = "0a1b2c3d"

func TestIdentityOf(t *testing.T) {
	t.Parallel()
	for _, id := range []box.Identity{
		{Installation: installation, Workspace: "a", Epoch: 1},
		{Installation: installation, Workspace: "a-1-", Epoch: 12},
		{Installation: installation, Workspace: "-", Epoch: 3},
		{Installation: installation, Workspace: strings.Repeat("z", 40), Epoch: 999},
	} {
		got, ok := driver.IdentityOf(box.Ref{Name: id.Name(), Epoch: id.Epoch})
		if !ok || got != id {
			t.Errorf("%s reads as %+v, %t", id.Name(), got, ok)
		}
	}
	for _, name := range []string{"", "bk-", "bk-0a1b2c3d-1", "bk-0a1b2c3d--1", "bk-0A1B2C3D-a-1", "bk-0a1b2c3d-a-01", "bk-0a1b2c3d-a/b-1", "bk-0a1b2c3d-a-1 ", "xx-0a1b2c3d-a-1"} {
		if got, ok := driver.IdentityOf(box.Ref{Name: name, Epoch: 1}); ok {
			t.Errorf("%q reads as %+v", name, got)
		}
	}
}
