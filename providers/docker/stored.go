package docker

import (
	"context"
	"time"

	"github.com/moby/moby/client"
)

// counting bounds the count of what a suspended box keeps. Before API 1.42 an
// engine counts all that it has to say what one volume holds.
const counting = 5 * time.Second

// stored is how many bytes the engine keeps for a box: the layer of its container,
// its volume and its snapshots. Zero when it does not say all of them in time: a
// part would be taken for the whole.
func (s *session) stored(ctx context.Context, f *found) int64 {
	ctx, cancel := context.WithTimeout(ctx, counting)
	defer cancel()
	if f.container == nil || f.data == nil {
		return 0
	}
	answer, err := s.api.ContainerInspect(ctx, f.container.ID, client.ContainerInspectOptions{Size: true})
	if err != nil || answer.Container.SizeRw == nil {
		return 0
	}
	sum := max(0, *answer.Container.SizeRw)
	ours, err := s.snapshots(ctx, f.identity)
	if err != nil {
		return 0
	}
	if len(ours) > 0 { // those below are among its layers
		history, err := s.api.ImageHistory(ctx, ours[0].name)
		if err != nil {
			return 0
		}
		for _, layer := range history.Items {
			if layer.Comment == snapshotNote {
				sum += max(0, layer.Size)
			}
		}
	}
	if held, ok := s.holds(ctx, f.data.Name); ok {
		return sum + held
	}
	return 0
}

// holds is how many bytes are in a volume, false when the engine does not say.
func (s *session) holds(ctx context.Context, volume string) (int64, bool) {
	usage, err := s.api.DiskUsage(ctx, client.DiskUsageOptions{Volumes: true, Verbose: true})
	if err != nil {
		return 0, false
	}
	for _, v := range usage.Volumes.Items {
		if v.Name == volume && v.UsageData != nil && v.UsageData.Size >= 0 {
			return v.UsageData.Size, true
		}
	}
	return 0, false
}
