package plan

import (
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/pins"
)

// apartOf returns the input of the layer below the pins, and this layer's part of the output.
func apartOf(in Input, out Output) (Input, Output) {
	below, _ := in.splitLayers()
	out.Topology = slices.DeleteFunc(slices.Clone(out.Topology), func(t model.Topology) bool { return pins.Of(in.Pins, t) != nil })
	return below, out
}

// lintPins checks the plan's changes of pinned rows against the pins.
func lintPins(in Input, out Output) []string {
	l := &linter{}
	after := slices.Clone(in.Pins)
	for _, p := range out.Pins {
		if i := slices.IndexFunc(after, func(was model.Pin) bool { return was.DeploymentID == p.DeploymentID }); i >= 0 {
			after[i] = p
		}
	}
	p := &pins.Linter{
		Rows: pinRows{planner: newPlanner(in, 0)}, Was: in.Pins, Is: after, Changed: out.Topology, Routes: out.Routes, Find: l.addFindingf,
	}
	p.Lint(in.Topology)
	return l.findings
}
