package all

import (
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// MarkdownTable returns rows as a table in Markdown, one column for each row:
// claims are read downwards, and compared sideways.
func MarkdownTable(rows []box.Capabilities) string {
	lines := []struct {
		name string
		cell func(c box.Capabilities) string
	}{
		{"idle boxes can be suspended", func(c box.Capabilities) string { return c.Suspend.String() }},
		{"memory survives a resume", func(c box.Capabilities) string { return c.MemoryKept.String() }},
		{"the provider's id survives", func(c box.Capabilities) string { return c.SameIdentity.String() }},
		{"the address survives", func(c box.Capabilities) string { return c.URLStable.String() }},
		{"the key survives", func(c box.Capabilities) string { return c.KeyStable.String() }},
		{"looking at a box keeps it awake", func(c box.Capabilities) string { return c.LookingIsUse.String() }},
		{"boxes can be listed", func(c box.Capabilities) string { return c.List.String() }},
		{"it tells when a box ends", func(c box.Capabilities) string { return c.Watch.String() }},
		{"history can be read only while it runs", func(c box.Capabilities) string { return c.ExportNeedsRunning.String() }},
		{"a step that a newer one overtook is refused", func(c box.Capabilities) string { return c.Fence.String() }},
		{"it has an idle timer of its own", func(c box.Capabilities) string { return c.NativeIdle.String() }},
		{"a box that is there can be taken over", func(c box.Capabilities) string { return c.Adopt.String() }},
		{"that timer can be set again", func(c box.Capabilities) string { return c.NativeAdjust.String() }},
		{"a suspended box can be made to give up its memory", func(c box.Capabilities) string { return c.Deepen.String() }},
		{"who acts first on an idle box", func(c box.Capabilities) string { return string(c.Lead) }},
		{"longest awake time", func(c box.Capabilities) string { return length(box.Duration(c.MaxRun), "no limit") }},
		{"a suspended box is kept for", func(c box.Capabilities) string { return length(box.Duration(c.PausedLife), "ever") }},
		{"longest wait until a resumed box answers", func(c box.Capabilities) string { return length(box.Duration(c.ResumeWait), "not known") }},
		{"proof of a suspend", func(c box.Capabilities) string { return c.SuspendProof }},
		{"proof of a deletion", func(c box.Capabilities) string { return c.DeleteProof }},
		{"never run against the live service", func(c box.Capabilities) string { return c.Untested }},
	}
	var b strings.Builder
	b.WriteString("| |")
	for _, row := range rows {
		b.WriteString(" " + cell(title(row)) + " |")
	}
	b.WriteString("\n| --- |" + strings.Repeat(" --- |", len(rows)) + "\n")
	for _, line := range lines {
		b.WriteString("| " + line.name + " |")
		for _, row := range rows {
			b.WriteString(" " + cell(line.cell(row)) + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// title tells apart the kinds of suspend of one driver.
func title(row box.Capabilities) string {
	if row.MemoryKept == box.Yes {
		return row.Driver + ", freezing"
	}
	return row.Driver + ", stopping"
}

func length(d box.Duration, zero string) string {
	if d == 0 {
		return zero
	}
	return d.String()
}

// cell keeps a text inside its cell.
func cell(text string) string {
	if text == "" {
		return "-"
	}
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(text)
}
