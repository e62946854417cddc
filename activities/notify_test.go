package activities_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/box"
)

func TestEveryOutcomeSaysWhoListens(t *testing.T) {
	t.Parallel()
	who := []box.Listener{{Name: "ops", Only: []box.EventKind{box.EventBoxArchived}}}
	r := newRigAt(t, "http://127.0.0.1:1")
	told := []box.Delivery{{Receiver: "ops", Taken: 4}}
	r.boxes.Notify = notifier{who: who, told: told}
	out, err := run(t.Context(), r, r.boxes.SendNotice, activities.NoticeInput{Posting: box.Posting{Workspace: "w", To: []box.Cursor{{Name: "ops"}}}})
	require.NoError(t, err)
	require.Equal(t, who, out.Listeners)
	require.Equal(t, told, out.Deliveries)

	_, err = run(t.Context(), r, r.boxes.Observe, activities.Target{Workspace: "w"})
	require.Error(t, err)
	require.Equal(t, who, activities.FailureOf(err).Listeners)
}
