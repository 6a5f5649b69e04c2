package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/rivo/uniseg"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// progress shows the progress of a rollout: on a terminal as a block that is redrawn, elsewhere as a line for
// each change.
type progress struct {
	app     *app
	started time.Time
	live    bool
	drawn   int // rows of the terminal
	last    string
}

func (p *progress) showProgress(r *windlassv1.WatchAppResponse, rolloutID, deploymentID string) {
	lines := progressLines(r, rolloutID, deploymentID, time.Now())
	text := strings.Join(lines, "\n")
	if text == p.last || len(lines) == 0 {
		return
	}
	if !p.live {
		old := map[string]bool{}
		for l := range strings.SplitSeq(p.last, "\n") {
			old[l] = true
		}
		for _, l := range lines {
			if !old[l] {
				p.app.infof("  %5s  %s", durationText(time.Since(p.started)), l)
			}
		}
		p.last = text
		return
	}
	p.last = text
	out := p.app.Stderr.(*screen) //nolint:forcetypeassert // live is set only if standard error is a screen
	if p.drawn > 0 {
		// Move up to the first line of the previous block, and clear everything below.
		out.writeControl(fmt.Sprintf("\x1b[%dA\x1b[J", p.drawn))
	}
	p.drawn = 0
	for _, l := range lines {
		l = "  " + oneLine(l)
		p.drawn += 1 + max(0, uniseg.StringWidth(l)-1)/out.columnCount()
		fmt.Fprintln(out, l) //nolint:errcheck // a closed output cannot be reported
	}
}

func (p *progress) endLine() { p.drawn = 0 }

// waitsFor describes what a rollout waits for when the command stops waiting for it.
func (p *progress) waitsFor(last *windlassv1.WatchAppResponse, rolloutID string) string {
	var text strings.Builder
	if ro := rolloutWithID(last, rolloutID); ro != nil {
		for _, l := range waitLines(last.GetApp(), ro, time.Now()) {
			fmt.Fprintf(&text, "\n%s %s", versionText(ro.GetVersion()), l)
		}
	}
	if name := last.GetApp().GetName(); name != "" {
		text.WriteString("\n`windlass status " + name + "` shows how it goes on.")
	}
	return text.String()
}

// progressLines returns the lines to show: what the rollout waits for, and the regions of one deployment, or
// of all if deploymentID is empty.
func progressLines(r *windlassv1.WatchAppResponse, rolloutID, deploymentID string, now time.Time) []string {
	var out []string
	ro := rolloutWithID(r, rolloutID)
	if rolloutID == "" {
		ro = r.GetRollout()
	}
	for _, l := range waitLines(r.GetApp(), ro, now) {
		out = append(out, fmt.Sprintf("%-4s %s", versionText(ro.GetVersion()), l))
	}
	for _, d := range r.GetDeployments() {
		if deploymentID != "" && d.Id != deploymentID {
			continue
		}
		for _, t := range d.Regions {
			if t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED {
				continue
			}
			ready := topologyReady(d, t)
			if roles := poolRoles(r, d.Version, t.Region); len(roles) > 0 {
				ready = rolesText(roles)
			}
			line := fmt.Sprintf("%-4s %-16s %-9s %s %s ready", versionText(d.Version), t.Region, enumText(t.Status, "TOPOLOGY_STATUS_"), progressBar(t.Ready, t.Replicas), ready)
			if t.RegionUnreachable {
				line += "  region unreachable"
			}
			if why := reasonText(t.Reason, t.Message); why != "" && t.Ready < t.Replicas {
				line += "  " + firstLine(why)
			}
			out = append(out, line)
		}
	}
	return out
}

// progressBar returns a progress bar of ten characters in brackets.
func progressBar(n, of int32) string {
	if of <= 0 {
		return "[----------]"
	}
	full := int(min(n, of) * 10 / of)
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", 10-full) + "]"
}
