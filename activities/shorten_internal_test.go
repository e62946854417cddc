package activities

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

func TestAHistoryHoldsTheItemsThatTellMost(t *testing.T) {
	t.Parallel()
	var report box.ReclaimReport
	for i := range 40 {
		report.Items = append(report.Items,
			box.ReclaimItem{Path: fmt.Sprintf("a%02d", i), Bytes: int64(i)},
			box.ReclaimItem{Path: fmt.Sprintf("left%02d", i), Bytes: int64(1000 * i), Skipped: "busy"})
	}
	all := report
	shorten(&report)
	require.Len(t, report.Items, maxReported)
	require.Equal(t, len(all.Items)-maxReported, report.Omitted)
	left := map[string]bool{}
	for _, one := range report.Items {
		left[one.Path] = true
	}
	require.True(t, left["a00"], "what is taken is told, however small")
	require.True(t, left["left39"] && left["left30"], "of what is left, the largest")
	require.False(t, left["left29"])

	few := box.ReclaimReport{Items: []box.ReclaimItem{{Path: "b"}, {Path: "a"}}}
	shorten(&few)
	require.Equal(t, box.ReclaimReport{Items: []box.ReclaimItem{{Path: "b"}, {Path: "a"}}}, few)
}
