package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/ci/tools/layout"
)

// finding is a vulnerability that code calls.
type finding struct {
	id, summary, fixed string
	// trace has the calls from the vulnerable function up to a function that starts the program or a test.
	trace []frame
}

// frame is a function that leads to the vulnerable function, and the place of its call.
type frame struct {
	Module, Version, Package, Receiver, Function string
	Position                                     *struct {
		Filename string
		Line     int
	}
}

func (f frame) name() string {
	if f.Receiver != "" {
		return f.Package + "." + strings.TrimPrefix(f.Receiver, "*") + "." + f.Function
	}
	return f.Package + "." + f.Function
}

// String describes the vulnerability, its fix, and the call in this repository that leads to it.
func (f finding) String() string {
	sink := f.trace[0]
	fix := "no fixed version is known"
	switch {
	case f.fixed != "" && sink.Module == "stdlib":
		fix = "build with Go " + strings.TrimPrefix(f.fixed, "v") + " or newer"
	case f.fixed != "":
		fix = "use " + f.fixed
	}
	text := fmt.Sprintf("%s in %s %s: %s\n    fix: %s\n    called: %s", f.id, sink.Module, sink.Version, f.summary, fix, sink.name())
	own := slices.IndexFunc(f.trace, func(at frame) bool { return strings.HasPrefix(at.Module+"/", layout.Prefix) })
	if own < 1 {
		own = len(f.trace) - 1
	}
	if own > 0 {
		text += " by " + f.trace[own].name()
	}
	if at := f.trace[own].Position; own > 0 && at != nil {
		text += fmt.Sprintf(", %s:%d", at.Filename, at.Line)
	}
	return text
}

// called reads the output of govulncheck with -format json. It returns one finding for each vulnerability that is
// called, with the shortest trace. It leaves out vulnerabilities of packages that are only imported.
func called(answer io.Reader) (found []finding, err error) {
	summaries := map[string]string{}
	shortest := map[string]finding{}
	for decoder := json.NewDecoder(answer); ; {
		var message struct {
			OSV     *struct{ ID, Summary string }
			Finding *struct {
				OSV   string
				Fixed string `json:"fixed_version"`
				Trace []frame
			}
		}
		err := decoder.Decode(&message)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read govulncheck's findings: %w", err)
		}
		if o := message.OSV; o != nil {
			summaries[o.ID] = o.Summary
		}
		f := message.Finding
		if f == nil || len(f.Trace) == 0 || f.Trace[0].Function == "" {
			continue
		}
		if known, ok := shortest[f.OSV]; !ok || len(f.Trace) < len(known.trace) {
			shortest[f.OSV] = finding{id: f.OSV, fixed: f.Fixed, trace: f.Trace}
		}
	}
	for id, f := range shortest {
		f.summary = summaries[id]
		found = append(found, f)
	}
	slices.SortFunc(found, func(a, b finding) int { return cmp.Compare(a.id, b.id) })
	return found, nil
}
