package plan

import (
	"fmt"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

func describeProgress(b *strings.Builder, c *model.Progress) {
	for _, wave := range c.Waves {
		fmt.Fprintf(b, "  wave %s %s:", wave.Name, strings.ToLower(strings.TrimPrefix(wave.State.String(), "STATE_")))
		for _, r := range wave.Regions {
			fmt.Fprintf(b, " %s=%s", r.RegionID, strings.ToLower(strings.TrimPrefix(r.State.String(), "STATE_")))
		}
		b.WriteString("\n")
		describeChecks(b, wave)
	}
	for _, behind := range c.Lagging {
		st := behind.Progress.Waves[0].Regions[0]
		fmt.Fprintf(b, "  behind: %s", behind.RegionID)
		if behind.DeploymentID != "" {
			fmt.Fprintf(b, " with %s", behind.DeploymentID)
		}
		fmt.Fprintf(b, ", %s\n", strings.ToLower(strings.TrimPrefix(st.State.String(), "STATE_")))
	}
}

func describe(out Output, w *simulation) string {
	var b strings.Builder
	for _, h := range out.History {
		fmt.Fprintf(&b, "%s", h.What)
		if h.Version != 0 {
			fmt.Fprintf(&b, " v%d", h.Version)
		}
		if h.RegionID != "" {
			fmt.Fprintf(&b, " %s", h.RegionID)
		}
		fmt.Fprintf(&b, ": %s", h.Why)
		if h.Who != Who {
			fmt.Fprintf(&b, " (by %s)", h.Who)
		}
		b.WriteString("\n")
	}
	for _, d := range out.Deployments {
		fmt.Fprintf(&b, "  deployment v%d %s\n", d.Version, statusName(d.Status))
	}
	for _, t := range out.Topology {
		fmt.Fprintf(&b, "  row %s %s: %s replicas=%d weight=%d generation=%d", t.DeploymentID, t.RegionID,
			strings.ToLower(strings.TrimPrefix(t.Status.String(), "TOPOLOGY_STATUS_")), t.Replicas, t.Weight, t.Generation)
		if t.Reason != "" {
			fmt.Fprintf(&b, " %s", t.Reason)
		}
		b.WriteString("\n")
	}
	for _, r := range out.Routes {
		fmt.Fprintf(&b, "  route %s: generation=%d hosts=%v\n", r.RegionID, r.Generation, r.Hosts)
	}
	if s := out.RolloutState; s != nil {
		describeProgress(&b, s.Progress)
	}
	describePins(&b, out)
	if r := out.Rollout; r != nil {
		fmt.Fprintf(&b, "  rollout v%d %s\n", r.Version, strings.ToLower(strings.TrimPrefix(r.Status.String(), "ROLLOUT_STATUS_")))
	}
	if a := out.App; a != nil {
		fmt.Fprintf(&b, "  app %s", strings.ToLower(strings.TrimPrefix(a.Status.String(), "APP_STATUS_")))
		if a.LiveDeploymentID != "" {
			fmt.Fprintf(&b, " live=%s", a.LiveDeploymentID)
		}
		if a.PreviousDeploymentID != "" {
			fmt.Fprintf(&b, " previous=%s", a.PreviousDeploymentID)
		}
		if a.DeletedAt != 0 {
			b.WriteString(" deleted")
		}
		if a.Message != "" {
			fmt.Fprintf(&b, " %q", a.Message)
		}
		b.WriteString("\n")
	}
	if out.Resolve != "" {
		fmt.Fprintf(&b, "  resolve %s\n", out.Resolve)
	}
	switch w.next {
	case 0:
		b.WriteString("settled\n")
	default:
		fmt.Fprintf(&b, "look again in %.1f s\n", float64(w.next-w.now)/1000)
	}
	return b.String()
}
