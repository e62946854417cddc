package server

import (
	"log/slog"
	"time"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/scan"
)

// Assemble makes what is missing of a box and opens what frees its space, as boxd
// does.
func Assemble(root string) (*reclaim.Reclaimer, error) {
	if err := makeLayout(root); err != nil {
		return nil, err
	}
	in, err := assemble(settings{root: root}, func(string) string { return "" }, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return in.reclaimer, nil
}

// SettleStorage makes the storage status take everything on the disk for left
// alone for long, and bounds each part of it.
func (s *Server) SettleStorage(bound time.Duration) {
	s.storage.bound = bound
	s.storage.scanner = scan.New(s.opts.Root, scan.Options{
		Watch: watches, Now: func() time.Time { return time.Now().Add(time.Hour) },
	})
}

// StorageWork is what the last look cost, for who waits for its answer.
func (s *Server) StorageWork() scan.Work { return s.storage.cost }

// StorageWaiting is how many wait for the look that is under way.
func (s *Server) StorageWaiting() int {
	s.storage.mu.Lock()
	defer s.storage.mu.Unlock()
	if s.storage.running == nil {
		return 0
	}
	return s.storage.running.waiting
}
