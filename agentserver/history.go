package agentserver

import (
	"context"
	"io"

	"github.com/openhands/boxkeeper/box"
)

// History is a box as an export store reads it, and puts a history back into it.
type History struct{ Client *Client }

// Conversations is [Client.Conversations], as marks.
func (h History) Conversations(ctx context.Context) ([]box.ConversationMark, error) {
	list, err := h.Client.Conversations(ctx)
	if err != nil {
		return nil, err
	}
	marks := make([]box.ConversationMark, 0, len(list))
	for _, c := range list {
		marks = append(marks, c.ConversationMark)
	}
	return marks, nil
}

// Download is [Client.DownloadTrajectory].
func (h History) Download(ctx context.Context, id string) (io.ReadCloser, int64, error) {
	return h.Client.DownloadTrajectory(ctx, id)
}

// Workspace gives the archive of the box's work, where its boxd can; Unsupported
// where none is.
func (h History) Workspace(ctx context.Context) (io.ReadCloser, error) {
	info, err := h.Client.Info(ctx)
	if err != nil {
		return nil, err
	}
	if !info.Has(CapabilityExport) {
		return nil, box.Errorf(box.ClassUnsupported, "its agent-server cannot give them out (%s)", CapabilityExport)
	}
	return h.Client.DownloadWorkspace(ctx)
}

// Upload is [Client.ImportHistory].
func (h History) Upload(ctx context.Context, id string, body io.Reader, size int64) error {
	_, err := h.Client.ImportHistory(ctx, id, body, size)
	return err
}
