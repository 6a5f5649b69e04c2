package cli

import (
	"fmt"
	"math"
	"strconv"
	"text/tabwriter"
	"time"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// checksTable prints the checks of the analysis, for each region in which they are measured.
func checksTable(w *tabwriter.Writer, p *windlassv1.RolloutProgress) {
	var some bool
	for _, wave := range p.Waves {
		for _, g := range wave.Regions {
			for _, c := range g.Checks {
				if !some {
					writeRow(w)
					writeRow(w, "CHECK", "REGION", "STATE", "FIGURE", "OLD", "SAMPLES", "FAILURES", "MEASURED", "NEXT", "MESSAGE")
					some = true
				}
				writeRow(w, c.Name, g.Region, checkState(c), figureText(c.Figure), figureText(c.OldFigure), samplesText(c),
					fmt.Sprintf("%d of %d", c.Failures, c.FailureLimit), ageText(c.MeasuredAt), untilText(c.DueAt), firstLine(c.Message))
			}
		}
	}
}

func checkState(c *windlassv1.CheckProgress) string {
	text := enumText(c.State, "STATE_")
	if c.HeldSince != 0 {
		text += " for " + ageText(c.HeldSince)
	}
	return text
}

func figureText(v *float64) string {
	if v == nil {
		return "-"
	}
	return strconv.FormatFloat(*v, 'g', 4, 64)
}

// samplesText returns the numbers of samples of the new version and of the old one.
func samplesText(c *windlassv1.CheckProgress) string {
	count := func(v *float64) string {
		if v == nil {
			return "-"
		}
		return strconv.FormatFloat(math.Round(*v), 'f', 0, 64)
	}
	if c.OldSamples == nil {
		return count(c.Samples)
	}
	return count(c.Samples) + "/" + count(c.OldSamples)
}

func untilText(at int64) string {
	if at == 0 {
		return "-"
	}
	return "in " + durationText(max(0, time.Until(time.UnixMilli(at))))
}

// heldBy describes the check that heldCheck returns, or returns "" if there is none.
func heldBy(p *windlassv1.RolloutProgress) string {
	c, region, on := heldCheck(p, time.Now())
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s in %s for %s: %s; `windlass rollout %s` goes on without it", c.Name, region, ageText(c.HeldSince), firstLine(c.Message), on)
}

// heldCheck returns a check that holds a region although the time of its step or bake is over. It also returns the
// region, and the name of the command that continues without the check.
func heldCheck(p *windlassv1.RolloutProgress, now time.Time) (_ *windlassv1.CheckProgress, region, on string) {
	at := now.UnixMilli()
	for _, wave := range p.GetWaves() {
		for _, g := range wave.Regions {
			over, on := false, "promote"
			switch {
			case wave.State == windlassv1.WaveProgress_STATE_BAKING:
				over, on = at >= wave.BakingUntil, "skip-bake"
			case g.State == windlassv1.RegionProgress_STATE_ROLLING:
				over = g.StepUntil != 0 && at >= g.StepUntil
			}
			if !over {
				continue
			}
			for _, c := range g.Checks {
				if c.State == windlassv1.CheckProgress_STATE_HELD {
					return c, g.Region, on
				}
			}
		}
	}
	return nil, "", ""
}
