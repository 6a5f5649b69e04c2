package appspec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/pkg/preset"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// CheckExamples renders each example of a workspace's preset, and runs the checks of a deploy that depend on the spec
// alone. Fields of findings are paths in the definition, after a slash. Errors come first. Notes are left out. All
// examples together have one limit on the cost of expressions, and evaluation ends with ctx.
func CheckExamples(ctx context.Context, p *preset.Preset, examples []*windlassv1.PresetExample) (findings []preset.Finding) {
	presets := preset.Builtin().With(p).Within(ctx)
	for i, e := range examples {
		if ctx.Err() != nil {
			break
		}
		field := fmt.Sprintf("/examples[%d]", i)
		if engine := e.GetServe().GetEngine(); engine != p.Name {
			findings = append(findings, preset.Finding{
				Severity: preset.Error, Code: "ExampleInvalid", Field: field + ".serve.engine",
				Text: fmt.Sprintf("%q is not this preset", clipText(engine)), Fix: "set it to " + p.Name,
			})
			continue
		}
		findings = append(findings, checkExample(presets, e, field)...)
	}
	preset.SortFindings(findings)
	return findings
}

func checkExample(presets *preset.Registry, e *windlassv1.PresetExample, field string) (findings []preset.Finding) {
	spec := &windlassv1.DeploymentSpec{Regions: []string{"example"}, Serve: proto.CloneOf(e.GetServe()), Resources: proto.CloneOf(e.GetResources())}
	if e.GetCachePath() != "" {
		spec.ModelCache = &windlassv1.ModelCache{MountPath: e.GetCachePath(), Claim: &windlassv1.VolumeClaim{SizeGib: 1}}
	}
	if e.GetHosts() > 1 {
		spec.Roles = []*windlassv1.RoleSpec{{Name: "main", Hosts: e.GetHosts()}}
	}
	expanded, found := Expand(spec, presets)
	if !preset.HasErrors(found) {
		if err := Check(WithDefaults(expanded), "spec"); err != nil {
			detail := rpc.DetailOf(err)
			found = append(found, preset.Finding{
				Severity: preset.Error, Code: "GeneratedInvalid", Field: "/" + strings.TrimPrefix(detail.GetField(), "spec."), Text: messageOf(err),
				Fix: cmp.Or(detail.GetFix(), "change the definition, so that a deploy of the example is accepted"),
			})
		}
	}
	fails := e.GetFails()
	if fails != "" && slices.ContainsFunc(found, func(f preset.Finding) bool { return f.Severity == preset.Error && f.Code == fails }) {
		return nil
	}
	for _, f := range found {
		if f.Severity != preset.Note {
			f.Text = fmt.Sprintf("example %q: %s: %s", e.GetName(), FileField(f), f.Text)
			f.Field = field
			findings = append(findings, f)
		}
	}
	if fails != "" {
		findings = append(findings, preset.Finding{
			Severity: preset.Error, Code: "ExampleInvalid", Field: field + ".fails",
			Text: fmt.Sprintf("example %q has no error %s", e.GetName(), fails), Fix: "remove fails from the example, or correct the rule that should report the error",
		})
	}
	return findings
}

// messageOf returns the message of an API error without its code.
func messageOf(err error) string {
	if coded, ok := errors.AsType[*connect.Error](err); ok {
		return coded.Message()
	}
	return err.Error()
}
