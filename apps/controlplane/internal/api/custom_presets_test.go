package api_test

import (
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/preset"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// ember returns the definition of a custom preset.
func ember(edit ...func(*windlassv1.PresetDefinition)) *windlassv1.PresetDefinition {
	def := &windlassv1.PresetDefinition{
		Title: "Ember", DefaultEngineVersion: "2.1", ModelSchemes: []string{"hf"}, Parallelism: []string{"tensor"},
		Image: "example.com/ember:${engineVersion}", Command: []string{"ember"},
		Args: []*windlassv1.PresetArg{
			{Values: []string{"serve", "${weights}"}},
			{Flag: "--port", Values: []string{"$(PORT)"}, Reserved: true},
			{Flag: "--context", Values: []string{"${context}"}, When: "context > 0", Field: "context"},
			{Flag: "--tensor", Values: []string{"${tensor}"}, When: "tensor > 1", Field: "parallel.tensor"},
		},
		Metrics:  []*windlassv1.PresetMetric{{Signal: "queue", Metric: "ember_queue"}},
		Examples: []*windlassv1.PresetExample{{Name: "the least", Serve: &windlassv1.Serve{Engine: "custom:ember", Model: "hf://org/m"}}},
	}
	for _, f := range edit {
		f(def)
	}
	return def
}

// moreFlags adds a flag to the definition.
func moreFlags(def *windlassv1.PresetDefinition) {
	def.Args = append(def.Args, &windlassv1.PresetArg{Flag: "--paged", Values: []string{"${context / 16}"}})
}

func servingEmber(edit ...func(*windlassv1.DeploymentSpec)) func(*windlassv1.DeploymentSpec) {
	return serving(append([]func(*windlassv1.DeploymentSpec){func(s *windlassv1.DeploymentSpec) {
		s.Serve = &windlassv1.Serve{Engine: "custom:ember", Model: "hf://org/m@main", Context: 4096}
	}}, edit...)...)
}

func (h *harness) setPreset(name string, def *windlassv1.PresetDefinition) *windlassv1.SetPresetResponse {
	h.t.Helper()
	res, err := h.presets(h.owner).SetPreset(h.t.Context(), &windlassv1.SetPresetRequest{Name: name, Definition: def})
	require.NoError(h.t, err)
	return res
}

func TestCustomPreset_IsVersionedAndShown(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	first := w.setPreset("ember", ember())
	require.Equal(t, "custom:ember/1", first.GetPreset().GetId())
	require.Equal(t, "custom:ember", first.GetPreset().GetName())
	require.False(t, first.GetUnchanged())
	require.True(t, w.setPreset("ember", ember()).GetUnchanged())
	require.Equal(t, "custom:ember/2", w.setPreset("ember", ember(moreFlags)).GetPreset().GetId())

	list, err := w.presets(w.viewer).ListPresets(ctx, &windlassv1.ListPresetsRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetPresets(), len(preset.All())+1)
	last := list.GetPresets()[len(preset.All())]
	require.Equal(t, "custom:ember/2", last.GetId())
	require.NotEmpty(t, last.GetSetBy())
	require.Nil(t, last.GetDefinition(), "a list has no definitions")

	for name, want := range map[string]*windlassv1.PresetDefinition{"custom:ember": ember(moreFlags), "custom:ember/1": ember()} {
		got, err := w.presets(w.viewer).GetPreset(ctx, &windlassv1.GetPresetRequest{Name: name})
		require.NoError(t, err)
		require.Equal(t, want.String(), got.GetPreset().GetDefinition().String())
		require.Equal(t, "ember_queue", got.GetPreset().GetMetrics()[0].GetMetric())
	}
	versions, err := w.presets(w.viewer).ListPresetVersions(ctx, &windlassv1.ListPresetVersionsRequest{Name: "ember"})
	require.NoError(t, err)
	require.Len(t, versions.GetVersions(), 2)
	require.Equal(t, int32(2), versions.GetVersions()[0].GetVersion())

	made, err := w.presets(w.viewer).RenderPreset(ctx, &windlassv1.RenderPresetRequest{Spec: echo(servingEmber())})
	require.NoError(t, err)
	require.Equal(t, "custom:ember/2", made.GetSpec().GetGeneratedBy())
	require.Equal(t, strings.Fields("serve org/m --port $(PORT) --context 4096 --paged 256"), made.GetSpec().GetArgs())

	audit, err := w.history(w.owner).ListAudit(ctx, &windlassv1.ListAuditRequest{})
	require.NoError(t, err)
	require.Equal(t, "custom:ember", audit.GetEntries()[0].GetResourceId())
	require.Contains(t, audit.GetEntries()[0].GetAfter(), "--paged")
	require.NotContains(t, audit.GetEntries()[0].GetBefore(), "--paged")
	require.Contains(t, audit.GetEntries()[0].GetBefore(), "custom:ember/1")

	for range model.KeptPresetVersions {
		w.setPreset("ember", ember())
		w.setPreset("ember", ember(moreFlags))
	}
	versions, err = w.presets(w.viewer).ListPresetVersions(ctx, &windlassv1.ListPresetVersionsRequest{Name: "ember"})
	require.NoError(t, err)
	require.Len(t, versions.GetVersions(), model.KeptPresetVersions)
}

func TestCustomPreset_EditChangesNothingUntilADeploy(t *testing.T) {
	w := setup(t)
	w.hosts()
	ctx := t.Context()
	w.setPreset("ember", ember())
	w.deploy("llama", servingEmber())
	w.settle("llama")
	before := w.version("llama", 1).GetSpec()
	require.Equal(t, "custom:ember/1", before.GetGeneratedBy())
	require.Equal(t, "example.com/ember:2.1", before.GetImage())
	require.Equal(t, "ember_queue", before.GetGenerated().GetMetrics()[0].GetMetric())

	w.setPreset("ember", ember(moreFlags))
	want := []string{`args["--paged"]:  -> 256`, "generatedBy: custom:ember/1 -> custom:ember/2"}
	require.Equal(t, before.String(), w.version("llama", 1).GetSpec().String())
	require.Equal(t, want, paths(w.planned("llama", nil, servingEmber()).GetChanges()))
	diff, err := w.presets(w.viewer).DiffPreset(ctx, &windlassv1.DiffPresetRequest{App: "llama"})
	require.NoError(t, err)
	require.Equal(t, "custom:ember/2", diff.GetNewest())
	require.Equal(t, want, paths(diff.GetChanges()))
	require.Equal(t, outcomeUnchanged, w.planned("llama", nil, servingEmber(func(s *windlassv1.DeploymentSpec) { s.Serve.Engine = "custom:ember/1" })).GetOutcome(), "a version can be named")

	_, err = w.apps(w.deployer).SetEnvironment(ctx, &windlassv1.SetEnvironmentRequest{App: "llama", Set: map[string]string{"A": "1"}})
	require.NoError(t, err)
	require.Equal(t, "custom:ember/1", w.newestSpec("llama").GetGeneratedBy(), "a change other than a deploy keeps the version's preset")
	w.settle("llama")
	w.deploy("llama", servingEmber())
	require.Equal(t, "custom:ember/2", w.newestSpec("llama").GetGeneratedBy())
	require.Contains(t, w.newestSpec("llama").GetArgs(), "--paged")
	w.settle("llama")

	_, err = w.presets(w.owner).DeletePreset(ctx, &windlassv1.DeletePresetRequest{Name: "ember"})
	require.NoError(t, err)
	require.Equal(t, int32(3), w.app("llama").GetLiveVersion())
	_, err = w.apps(w.deployer).Deploy(ctx, &windlassv1.DeployRequest{App: "llama", Spec: echo(servingEmber())})
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_ENGINE, "spec.serve.engine")
	_, err = w.presets(w.viewer).DiffPreset(ctx, &windlassv1.DiffPresetRequest{App: "llama"})
	refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, "")
	_, err = w.apps(w.deployer).Rollback(ctx, &windlassv1.RollbackRequest{App: "llama", Version: 1})
	require.NoError(t, err, "an app keeps its version of a deleted preset")
	require.Equal(t, "custom:ember/3", w.setPreset("ember", ember()).GetPreset().GetId(), "numbers of deleted versions are not used again")
}

func TestCustomPreset_DeployReportsItsFindings(t *testing.T) {
	w := setup(t)
	w.setPreset("ember", ember(func(d *windlassv1.PresetDefinition) {
		d.Rules = []*windlassv1.PresetRule{
			{When: "context > 100000", Code: "ContextLong", Field: "serve.context", Message: "few GPUs hold ${context} tokens"},
			{When: "gpus > 4", Severity: windlassv1.PresetFinding_SEVERITY_ERROR, Code: "TooManyGPUs", Field: "resources.gpu", Message: "it uses 4", Fix: "set count to 4"},
		}
	}))
	p := w.planned("llama", nil, servingEmber(gpusOf(8, "")))
	require.False(t, p.GetWouldRun())
	require.Contains(t, reasons(p), "VALIDATION spec.resources.gpu")
	p = w.planned("llama", nil, servingEmber(gpusOf(8, ""), func(s *windlassv1.DeploymentSpec) { s.Serve.Parallel = &windlassv1.Parallelism{Tensor: 3} }))
	require.Contains(t, reasons(p), "PARALLEL_MISMATCH spec.serve.parallel")
	res, err := w.apps(w.deployer).Deploy(t.Context(), &windlassv1.DeployRequest{App: "llama", Spec: echo(servingEmber(func(s *windlassv1.DeploymentSpec) { s.Serve.Context = 200_000 }))})
	require.NoError(t, err)
	require.Len(t, res.GetWarnings(), 1)
	require.Contains(t, res.GetWarnings()[0], "few GPUs hold 200000 tokens")
	s := w.version("llama", 1).GetSpec()
	require.NotContains(t, s.GetArgs(), "--tensor")

	t.Run("the schema also applies to values that a template made", func(t *testing.T) {
		w.setPreset("long", ember(func(d *windlassv1.PresetDefinition) {
			d.Image = "example.com/${path}"
			d.Examples[0].Serve.Engine = "custom:long"
		}))
		p := w.planned("other", nil, servingEmber(func(s *windlassv1.DeploymentSpec) {
			s.Serve.Engine, s.Serve.Model = "custom:long", "hf://org/"+strings.Repeat("m", 600)
		}))
		require.False(t, p.GetWouldRun())
		require.Contains(t, reasons(p), "VALIDATION spec.image")
	})
}

func TestCustomPreset_IsRefused(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	set := func(key, name string, def *windlassv1.PresetDefinition) error {
		_, err := w.presets(key).SetPreset(ctx, &windlassv1.SetPresetRequest{Name: name, Definition: def})
		return err
	}
	remove := func(key string) error {
		_, err := w.presets(key).DeletePreset(ctx, &windlassv1.DeletePresetRequest{Name: "ember"})
		return err
	}
	example := func(edit func(*windlassv1.PresetExample)) *windlassv1.PresetDefinition {
		return ember(func(d *windlassv1.PresetDefinition) { edit(d.Examples[0]) })
	}
	for name, c := range map[string]struct {
		def   *windlassv1.PresetDefinition
		field string
		says  string
	}{
		"an expression":                    {ember(func(d *windlassv1.PresetDefinition) { d.Args[2].When = "contxt > 0" }), "definition.args[2].when", "undeclared reference"},
		"no examples":                      {ember(func(d *windlassv1.PresetDefinition) { d.Examples = nil }), "definition.examples", "at least 1"},
		"an example of another preset":     {example(func(e *windlassv1.PresetExample) { e.Serve.Engine = "vllm" }), "definition.examples[0].serve.engine", "not this preset"},
		"an example that fails":            {example(func(e *windlassv1.PresetExample) { e.Serve.Parallel = &windlassv1.Parallelism{Tensor: 3} }), "definition.examples[0]", `example "the least": serve.parallel`},
		"an example that should fail":      {example(func(e *windlassv1.PresetExample) { e.Fails = "ParallelMismatch" }), "definition.examples[0].fails", "has no error ParallelMismatch"},
		"an example that a deploy refuses": {ember(func(d *windlassv1.PresetDefinition) { d.HealthCheck = &windlassv1.HealthCheck{Port: "admin"} }), "definition.examples[0]", "healthCheck.port"},
		"too large": {ember(func(d *windlassv1.PresetDefinition) {
			for i := range 20 {
				d.Args = append(d.Args, &windlassv1.PresetArg{Flag: fmt.Sprintf("--f%d", i), Values: []string{strings.Repeat("x", 4000)}})
			}
		}), "definition.args", "at most 65536 are allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			err := set(w.owner, "ember", c.def)
			refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, c.field)
			require.ErrorContains(t, err, c.says)
			if strings.Contains(name, "no examples") {
				return // the schema refuses it
			}
			require.NotEmpty(t, detailOf(err).GetFix())
			checked, err := w.presets(w.viewer).CheckPreset(ctx, &windlassv1.CheckPresetRequest{Name: "ember", Definition: c.def})
			require.NoError(t, err)
			require.Nil(t, checked.GetPreset())
			require.Equal(t, c.field, "definition."+checked.GetFindings()[0].GetField())
		})
	}
	checked, err := w.presets(w.viewer).CheckPreset(ctx, &windlassv1.CheckPresetRequest{Name: "ember", Definition: ember()})
	require.NoError(t, err)
	require.Equal(t, "custom:ember/1", checked.GetPreset().GetId())
	refused(t, remove(w.owner), connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "name")
	_, err = w.presets(w.viewer).ListPresetVersions(ctx, &windlassv1.ListPresetVersionsRequest{Name: "ember"})
	refused(t, err, connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "name")

	refused(t, set(w.deployer, "ember", ember()), connect.CodePermissionDenied, windlassv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED, "")
	require.NoError(t, set(w.owner, "ember", ember()))
	refused(t, remove(w.deployer), connect.CodePermissionDenied, windlassv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED, "")

	t.Run("another workspace does not have it", func(t *testing.T) {
		refused(t, remove(w.rival), connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "name")
		_, err := w.presets(w.rival).GetPreset(ctx, &windlassv1.GetPresetRequest{Name: "custom:ember"})
		refused(t, err, connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_ENGINE, "name")
		made, err := w.presets(w.rival).RenderPreset(ctx, &windlassv1.RenderPresetRequest{Spec: echo(servingEmber())})
		require.NoError(t, err)
		require.Equal(t, "EngineUnknown", made.GetFindings()[0].GetCode())
	})
	t.Run("a workspace has at most 100 presets", func(t *testing.T) {
		w.update(func(tx store.Tx) error {
			for i := 1; i < model.MaxPresets; i++ {
				if err := tx.InsertPreset(model.Preset{WorkspaceID: w.workspace, Name: fmt.Sprintf("p%d", i), Version: 1, Definition: ember()}); err != nil {
					return err
				}
			}
			return nil
		})
		more := ember(func(d *windlassv1.PresetDefinition) { d.Examples[0].Serve.Engine = "custom:more" })
		refused(t, set(w.owner, "more", more), connect.CodeResourceExhausted, windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, "name")
		require.NoError(t, set(w.owner, "ember", ember(moreFlags)), "a new version of an existing preset does not count")
		require.NoError(t, remove(w.owner))
		require.NoError(t, set(w.owner, "more", more))
	})
}

func TestCustomPreset_RefusedDefinitionCanBeCorrected(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	later := ember(func(d *windlassv1.PresetDefinition) { d.Image = "${later}" })
	w.update(func(tx store.Tx) error {
		return tx.InsertPreset(model.Preset{WorkspaceID: w.workspace, Name: "ember", Version: 7, Definition: later, SetBy: "ada"})
	})
	list, err := w.presets(w.viewer).ListPresets(ctx, &windlassv1.ListPresetsRequest{})
	require.NoError(t, err)
	shown := list.GetPresets()[len(preset.All())]
	require.Equal(t, "custom:ember/7", shown.GetId())
	require.Equal(t, "ember_queue", shown.GetMetrics()[0].GetMetric())
	got, err := w.presets(w.viewer).GetPreset(ctx, &windlassv1.GetPresetRequest{Name: "custom:ember"})
	require.NoError(t, err)
	require.Equal(t, later.String(), got.GetPreset().GetDefinition().String())
	require.Equal(t, "ada", got.GetPreset().GetSetBy())

	_, err = w.apps(w.deployer).Deploy(ctx, &windlassv1.DeployRequest{App: "llama", Spec: echo(servingEmber())})
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.serve.engine")
	_, err = w.apps(w.viewer).PlanDeploy(ctx, &windlassv1.PlanDeployRequest{App: "llama", Spec: echo(servingEmber())})
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.serve.engine")

	require.Equal(t, "custom:ember/8", w.setPreset("ember", ember()).GetPreset().GetId())
	audit, err := w.history(w.owner).ListAudit(ctx, &windlassv1.ListAuditRequest{})
	require.NoError(t, err)
	require.Contains(t, audit.GetEntries()[0].GetBefore(), "${later}")
	w.deploy("llama", servingEmber())
	_, err = w.presets(w.owner).DeletePreset(ctx, &windlassv1.DeletePresetRequest{Name: "ember"})
	require.NoError(t, err)
}

func TestCustomPreset_RepeatedDeployReturnsTheFirstAnswer(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	w.setPreset("ember", ember())
	deploy := func(key string, edit ...func(*windlassv1.DeploymentSpec)) (*windlassv1.DeployResponse, error) {
		return w.apps(w.deployer).Deploy(ctx, &windlassv1.DeployRequest{App: "llama", Spec: echo(servingEmber(edit...)), Mutation: &windlassv1.Mutation{IdempotencyKey: key}})
	}
	first, err := deploy("one")
	require.NoError(t, err)
	check := func() {
		t.Helper()
		again, err := deploy("one")
		require.NoError(t, err)
		require.Equal(t, first.String(), again.String())
		_, err = deploy("one", args("--other"))
		refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_IDEMPOTENCY_MISMATCH, "mutation.idempotencyKey")
	}
	check()
	_, err = w.presets(w.owner).DeletePreset(ctx, &windlassv1.DeletePresetRequest{Name: "ember"})
	require.NoError(t, err)
	check()
	_, err = deploy("two")
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_ENGINE, "spec.serve.engine")
	w.update(func(tx store.Tx) error {
		return tx.InsertPreset(model.Preset{WorkspaceID: w.workspace, Name: "ember", Version: 7, Definition: ember(func(d *windlassv1.PresetDefinition) { d.Image = "${later}" })})
	})
	check()
	_, err = deploy("two")
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.serve.engine")
}

func TestCustomPreset_FindingsAreSorted(t *testing.T) {
	w := setup(t)
	def := ember(func(d *windlassv1.PresetDefinition) {
		d.Rules = []*windlassv1.PresetRule{{When: "true", Code: "Always", Field: "serve.context", Message: "it warns"}}
		d.Examples = append(d.Examples, &windlassv1.PresetExample{
			Name: "three of two", Serve: &windlassv1.Serve{Engine: "custom:ember", Model: "hf://org/m", Parallel: &windlassv1.Parallelism{Tensor: 3}},
		})
	})
	checked, err := w.presets(w.viewer).CheckPreset(t.Context(), &windlassv1.CheckPresetRequest{Name: "ember", Definition: def})
	require.NoError(t, err)
	var severities []windlassv1.PresetFinding_Severity
	for _, f := range checked.GetFindings() {
		severities = append(severities, f.GetSeverity())
	}
	require.Equal(t, []windlassv1.PresetFinding_Severity{windlassv1.PresetFinding_SEVERITY_ERROR, windlassv1.PresetFinding_SEVERITY_WARNING}, severities)
}

func TestCustomPreset_CostOfACheckIsLimited(t *testing.T) {
	w := setup(t)
	// One example alone may cost as much as one deploy.
	def := ember(func(d *windlassv1.PresetDefinition) {
		for i := range 25 {
			d.Args = append(d.Args, &windlassv1.PresetArg{
				Flag: fmt.Sprintf("--f%d", i), When: "[1,1,1,1,1,1,1,1].all(x, [1,1,1,1,1,1,1,1].all(x, [1,1,1,1,1,1,1,1].all(x, x == 1)))",
			})
		}
		for len(d.Examples) < 32 {
			d.Examples = append(d.Examples, d.Examples[0])
		}
	})
	checked, err := w.presets(w.viewer).CheckPreset(t.Context(), &windlassv1.CheckPresetRequest{Name: "ember", Definition: def})
	require.NoError(t, err)
	require.Nil(t, checked.GetPreset())
	require.Equal(t, "ExpressionFailed", checked.GetFindings()[0].GetCode())
	require.Contains(t, checked.GetFindings()[0].GetMessage(), "for all examples")
}
