package driver

import (
	"context"

	"github.com/openhands/boxkeeper/box"
)

type fenceKey struct{}

// WithFence returns a context that carries the fence of the step which asks,
// down to the driver. It travels there because it is about the caller and not
// about the box: what is done is the same with any fence, or it is refused.
func WithFence(ctx context.Context, fence box.Fence) context.Context {
	return context.WithValue(ctx, fenceKey{}, fence)
}

// FenceOf returns the fence of the step which asks; zero when none was given.
func FenceOf(ctx context.Context) box.Fence {
	fence, _ := ctx.Value(fenceKey{}).(box.Fence)
	return fence
}

// Overtaken is the refusal of a step that is older than one which has been at
// the box called name. Its caller must not repeat it: another one has the box.
func Overtaken(name string, asked, seen box.Fence) error {
	return box.Errorf(box.ClassConflict, "box %s: a newer step has been here (%s), so nothing was done for %s", name, seen, asked)
}
