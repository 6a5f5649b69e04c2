package preset

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// definition returns a small definition that has each part.
func definition(edit ...func(*windlassv1.PresetDefinition)) *windlassv1.PresetDefinition {
	def := &windlassv1.PresetDefinition{
		Title: "Ember", DefaultEngineVersion: "v2.1", EngineFrom: "2", EngineBefore: "3",
		ModelSchemes: []string{"hf", "file"}, Parallelism: []string{"tensor"}, MemoryShare: 0.9,
		Aliases: map[string]string{"-tp": "--tensor"},
		Image:   "example.com/ember:${engineVersion}${gpus == 0 ? '-cpu' : ''}",
		Command: []string{"ember"},
		Args: []*windlassv1.PresetArg{
			{Values: []string{"serve", "${weights}"}},
			{Flag: "--revision", Values: []string{"${revision}"}, When: "revision != ''", Field: "model"},
			{Flag: "--port", Values: []string{"$(PORT)"}, Reserved: true},
			{Flag: "--context", Values: []string{"${context}"}, When: "context > 0", Field: "context"},
			{Flag: "--tensor", Values: []string{"${tensor}"}, When: "tensor > 1", Field: "parallel.tensor"},
			{Flag: "--paged", When: "atLeast(engineVersion, '2.1')"},
		},
		Env:              []*windlassv1.PresetVariable{{Name: "EMBER_CACHE", Value: "${cachePath}/ember", When: "cachePath != '' && scheme == 'hf'"}},
		HealthCheck:      &windlassv1.HealthCheck{Path: "/ready"},
		TerminationGrace: durationpb.New(90e9),
		ShmMib:           "gpus > 1 ? 4096 : 0",
		Metrics: []*windlassv1.PresetMetric{
			{Signal: "queue", Metric: "ember_waiting", EngineFrom: "2.1"},
			{Signal: "queue", Metric: "ember_queue"},
		},
		Rules: []*windlassv1.PresetRule{{
			When: "context > 0 && context < 128", Severity: windlassv1.PresetFinding_SEVERITY_ERROR, Code: "ContextTooShort",
			Field: "serve.context", Message: "${context} tokens are too few", Fix: "set context to 128 or more",
		}},
	}
	for _, f := range edit {
		f(def)
	}
	return def
}

func TestDefine(t *testing.T) {
	t.Run("a definition makes the spec of its templates and conditions", func(t *testing.T) {
		p, findings := Define(t.Context(), "ember", 3, definition())
		require.Empty(t, findings)
		require.Equal(t, "custom:ember/3", p.ID())
		f, findings := Builtin().With(p).Generate(Input{
			Engine: "custom:ember", Model: "hf://org/m@main", Context: 4096, GPU: GPU{Count: 4}, CachePath: "/models",
			Options: map[string]Option{"rope": {Values: []string{"yarn"}}, "paged": {Off: true}},
		})
		require.False(t, HasErrors(findings), "%v", findings)
		require.Equal(t, "custom:ember/3", f.GeneratedBy)
		require.Equal(t, "2.1", f.EngineVersion)
		require.Equal(t, "example.com/ember:2.1", f.Spec.GetImage())
		require.Equal(t, strings.Fields("serve org/m --revision main --port $(PORT) --context 4096 --tensor 4 --rope yarn"), f.Spec.GetArgs())
		require.Equal(t, map[string]string{"EMBER_CACHE": "/models/ember"}, f.Spec.GetEnv())
		require.Equal(t, "/ready", f.Spec.GetHealthCheck().GetPath())
		require.Equal(t, int64(1800), f.Spec.GetHealthCheck().GetStartupBudget().GetSeconds())
		require.Equal(t, int64(90), f.Spec.GetTerminationGrace().GetSeconds())
		require.Equal(t, int32(4096), f.Spec.GetResources().GetShmMib())
		require.Equal(t, []Metric{{"queue", "ember_waiting", "http", "/metrics"}}, f.Metrics)

		f, _ = p.Generate(Input{Model: "file:///m", EngineVersion: "2.0"})
		require.Equal(t, "example.com/ember:2.0-cpu", f.Spec.GetImage())
		require.Equal(t, strings.Fields("serve /m --port $(PORT)"), f.Spec.GetArgs())
		require.Empty(t, f.Spec.GetEnv())
		require.Nil(t, f.Spec.GetResources())
		require.Equal(t, "ember_queue", f.Metrics[0].Metric, "the metric of that version of the engine")
	})
	t.Run("a definition with hosts makes a server on several hosts", func(t *testing.T) {
		several := func(d *windlassv1.PresetDefinition) {
			d.Hosts = &windlassv1.PresetHosts{EngineFrom: "2.1"}
			d.Examples = []*windlassv1.PresetExample{{Name: "two hosts", Hosts: 2}}
			d.Args = append(d.Args,
				&windlassv1.PresetArg{Flag: "--nodes", Values: []string{"${hosts}"}, When: "hosts > 1", Reserved: true},
				&windlassv1.PresetArg{Flag: "--rank", Values: []string{"$(WINDLASS_RANK)"}, When: "hosts > 1", Reserved: true},
				&windlassv1.PresetArg{Flag: "--leader", Values: []string{"$(WINDLASS_LEADER):2950"}, When: "hosts > 1", Reserved: true},
			)
		}
		p, findings := Define(t.Context(), "ember", 1, definition(several))
		require.Empty(t, findings)
		f, findings := p.Generate(Input{Model: "hf://org/m", Hosts: 2, GPU: GPU{Count: 4}})
		require.False(t, HasErrors(findings), "%v", findings)
		require.Equal(t, strings.Fields("serve org/m --port $(PORT) --tensor 8 --paged --nodes 2 --rank $(WINDLASS_RANK) --leader $(WINDLASS_LEADER):2950"), f.Spec.GetArgs())
		f, _ = p.Generate(Input{Model: "hf://org/m", GPU: GPU{Count: 4}})
		require.Equal(t, strings.Fields("serve org/m --port $(PORT) --tensor 4 --paged"), f.Spec.GetArgs())

		says, _ := Define(t.Context(), "ember", 1, definition())
		alone, findings := Define(t.Context(), "ember", 1, definition(several, func(d *windlassv1.PresetDefinition) { d.Parallelism = nil }))
		require.Empty(t, findings)
		_, findings = alone.Generate(Input{Model: "hf://org/m", Hosts: 2})
		require.False(t, HasErrors(findings), "an engine that splits no tensors needs no GPU")
		for name, c := range map[string]struct {
			p          *Preset
			in         Input
			field, fix string
		}{
			"without hosts":     {says, Input{Model: "hf://org/m", Hosts: 2, GPU: GPU{Count: 4}}, "/roles[0].hosts", "set hosts in the definition and start the ranks by $(WINDLASS_RANK)"},
			"of an old engine":  {p, Input{Model: "hf://org/m", EngineVersion: "2.0", Hosts: 2, GPU: GPU{Count: 4}}, "engineVersion", "set it to 2.1 or newer"},
			"without GPUs":      {p, Input{Model: "hf://org/m", Hosts: 2}, "/resources.gpu", "set resources.gpu.count"},
			"a flag of ranks":   {p, Input{Model: "hf://org/m", Hosts: 2, GPU: GPU{Count: 4}, Options: map[string]Option{"rank": {Values: []string{"1"}}}}, "options.rank", "remove it"},
			"GPUs of all hosts": {p, Input{Model: "hf://org/m", Hosts: 2, GPU: GPU{Count: 4}, Parallel: Parallel{Tensor: 4}}, "parallel", "set parallel.tensor to 8"},
		} {
			t.Run(name, func(t *testing.T) {
				_, findings := c.p.Generate(c.in)
				require.True(t, HasErrors(findings))
				require.Equal(t, c.field, findings[0].Field)
				require.Contains(t, findings[0].Fix, c.fix)
			})
		}
		for field, edit := range map[string]func(*windlassv1.PresetDefinition){
			"/examples":         func(d *windlassv1.PresetDefinition) { d.Examples[0].Hosts = 1 },
			"/hosts.engineFrom": func(d *windlassv1.PresetDefinition) { d.Hosts.EngineFrom = "two!" },
		} {
			_, findings := Define(t.Context(), "ember", 1, definition(several, edit))
			require.Len(t, findings, 1)
			require.Equal(t, field, findings[0].Field)
			require.NotEmpty(t, findings[0].Fix)
		}
	})
	t.Run("it has the checks of built-in presets, and its own", func(t *testing.T) {
		p, _ := Define(t.Context(), "ember", 1, definition())
		for name, c := range map[string]struct {
			in          Input
			code, field string
		}{
			"its rule":                {Input{Model: "hf://org/m", Context: 64}, "ContextTooShort", "context"},
			"a flag of a field":       {Input{Model: "hf://org/m", Options: map[string]Option{"tp": {}}}, "FlagTaken", "options.tp"},
			"a flag twice":            {Input{Model: "hf://org/m", Context: 256, Options: map[string]Option{"context": {}}}, "FlagTwice", "options.context"},
			"a reserved flag":         {Input{Model: "hf://org/m", Options: map[string]Option{"port": {}}}, "FlagTaken", "options.port"},
			"GPUs that do not divide": {Input{Model: "hf://org/m", Parallel: Parallel{Tensor: 3}, GPU: GPU{Count: 8}}, "ParallelMismatch", "parallel"},
			"parallelism it lacks":    {Input{Model: "hf://org/m", Parallel: Parallel{Data: 2}, GPU: GPU{Count: 2}}, "ParallelUnsupported", "parallel.data"},
			"a model from elsewhere":  {Input{Model: "s3://b/m"}, "ModelUnsupported", "model"},
			"heads":                   {Input{Model: "hf://org/m", GPU: GPU{Count: 6}, Facts: &llama70bFacts}, "HeadsNotDivisible", "parallel.tensor"},
		} {
			t.Run(name, func(t *testing.T) {
				f, findings := p.Generate(c.in)
				require.Nil(t, f.Spec)
				require.Equal(t, c.code, findings[0].Code)
				require.Equal(t, c.field, findings[0].Field)
				require.NotEmpty(t, findings[0].Fix)
			})
		}
		_, findings := p.Generate(Input{Model: "hf://org/m", EngineVersion: "4.0"})
		require.Equal(t, "EngineVersionUnchecked", findings[0].Code)
	})
	t.Run("a wrong definition is refused when it is set, with the place of the error", func(t *testing.T) {
		arg := func(a *windlassv1.PresetArg) func(*windlassv1.PresetDefinition) {
			return func(d *windlassv1.PresetDefinition) { d.Args = []*windlassv1.PresetArg{a} }
		}
		for name, c := range map[string]struct {
			edit              func(*windlassv1.PresetDefinition)
			code, field, text string
		}{
			"no such variable":     {arg(&windlassv1.PresetArg{Flag: "--a", When: "contxt > 0"}), "ExpressionInvalid", "/args[0].when", "undeclared reference to 'contxt'"},
			"another type":         {arg(&windlassv1.PresetArg{Flag: "--a", When: "context"}), "ExpressionInvalid", "/args[0].when", "gives a number"},
			"a comparison of two":  {arg(&windlassv1.PresetArg{Flag: "--a", When: "context > '1'"}), "ExpressionInvalid", "/args[0].when", "no matching overload"},
			"a list in a text":     {arg(&windlassv1.PresetArg{Flag: "--a", Values: []string{"${options}"}}), "ExpressionInvalid", "/args[0].values[0]", "gives a list of texts"},
			"no end":               {func(d *windlassv1.PresetDefinition) { d.Image = "a:${path" }, "TemplateInvalid", "/image", "has no }"},
			"no expression":        {func(d *windlassv1.PresetDefinition) { d.Image = "a:${}" }, "TemplateInvalid", "/image", "has no expression"},
			"shared memory":        {func(d *windlassv1.PresetDefinition) { d.ShmMib = "'many'" }, "ExpressionInvalid", "/shmMib", "gives a text"},
			"too deep":             {arg(&windlassv1.PresetArg{Flag: "--a", When: strings.Repeat("(", 200) + "true" + strings.Repeat(")", 200)}), "ExpressionInvalid", "/args[0].when", "recursion"},
			"an alias in args":     {arg(&windlassv1.PresetArg{Flag: "-tp"}), "AliasInvalid", "/args[0].flag", "is an alias of --tensor"},
			"an alias of an alias": {func(d *windlassv1.PresetDefinition) { d.Aliases["-x"] = "-tp" }, "AliasInvalid", `/aliases["-x"]`, "another alias"},
			"nothing in args":      {arg(&windlassv1.PresetArg{}), "DefinitionInvalid", "/args[0]", "neither a flag nor values"},
			"nothing to run":       {func(d *windlassv1.PresetDefinition) { d.Image, d.Command = "", nil }, "DefinitionInvalid", "/image", "nothing to run"},
			"no such port":         {func(d *windlassv1.PresetDefinition) { d.Metrics[0].Port = "x" }, "DefinitionInvalid", "/metrics[0].port", "no port"},
			"no version":           {func(d *windlassv1.PresetDefinition) { d.EngineBefore = "2" }, "DefinitionInvalid", "/engineBefore", "no version is from 2 and before 2"},
			"an error without fix": {func(d *windlassv1.PresetDefinition) { d.Rules[0].Fix = "" }, "DefinitionInvalid", "/rules[0].fix", "needs a fix"},
		} {
			t.Run(name, func(t *testing.T) {
				p, findings := Define(t.Context(), "ember", 1, definition(c.edit))
				require.Nil(t, p)
				require.NotEmpty(t, findings)
				require.Equal(t, c.code, findings[0].Code, "%+v", findings)
				require.Equal(t, c.field, findings[0].Field)
				require.Contains(t, findings[0].Text, c.text)
				require.NotEmpty(t, findings[0].Fix)
			})
		}
	})
	t.Run("an expression that fails or takes too much is an error of the deploy", func(t *testing.T) {
		ten := "[" + strings.TrimSuffix(strings.Repeat("1,", 10), ",") + "]"
		for name, source := range map[string]string{
			"division by zero": "1 / context > 0",
			"loops":            strings.Repeat(ten+".all(x, ", 6) + "true" + strings.Repeat(")", 6),
			"growing text":     "size(" + strings.Repeat("[", 7) + "model" + strings.Repeat("].map(x, x+x+x+x+x+x+x+x)[0]", 7) + ") > 0",
		} {
			t.Run(name, func(t *testing.T) {
				p, findings := Define(t.Context(), "ember", 1, definition(func(d *windlassv1.PresetDefinition) { d.Args[5].When = source }))
				require.Empty(t, findings)
				f, findings := p.Generate(Input{Model: "hf://org/m"})
				require.Nil(t, f.Spec)
				require.Equal(t, "ExpressionFailed", findings[0].Code)
				require.Contains(t, findings[0].Text, "custom:ember/1: args[5].when: ")
			})
		}
	})
	t.Run("the work of all expressions together is bounded, and so is their number", func(t *testing.T) {
		many := func(n int, when string) *windlassv1.PresetDefinition {
			return definition(func(d *windlassv1.PresetDefinition) {
				d.Args = nil
				for range n {
					d.Args = append(d.Args, &windlassv1.PresetArg{Flag: "--a", When: when})
				}
			})
		}
		p, findings := Define(t.Context(), "ember", 1, many(200, loops))
		require.Empty(t, findings)
		_, findings = p.Generate(Input{Model: "hf://org/m"})
		require.Equal(t, "ExpressionFailed", findings[0].Code)
		require.Contains(t, findings[0].Text, "too much work together")
		_, findings = Define(t.Context(), "ember", 1, many(600, "true"))
		require.Len(t, findings, 1)
		require.Contains(t, findings[0].Text, "more than 512 expressions")
	})
	t.Run("dollars, braces and quotes outside an expression are plain text", func(t *testing.T) {
		for text, want := range map[string]string{
			"a $${path} b": "a ${path} b", "${'}'}x": "}x", `${"\"}"}`: `"}`, "${ {'a': path}['a'] }": "org/m", "$(PORT) $5 }": "$(PORT) $5 }", "": "",
		} {
			p, findings := Define(t.Context(), "ember", 1, definition(func(d *windlassv1.PresetDefinition) {
				d.Args = []*windlassv1.PresetArg{{Flag: "--a", Values: []string{text}}}
			}))
			require.Empty(t, findings, text)
			f, _ := p.Generate(Input{Model: "hf://org/m"})
			require.Equal(t, []string{"--a", want}, f.Spec.GetArgs())
		}
	})
	t.Run("one input has one result", func(t *testing.T) {
		p, _ := Define(t.Context(), "ember", 1, definition())
		rapid.Check(t, func(t *rapid.T) {
			in := drawInput(t)
			first, findings := p.Generate(in)
			again, more := p.Generate(in)
			require.Equal(t, findings, more)
			require.True(t, proto.Equal(first.Spec, again.Spec))
		})
	})
}

func TestDescribe(t *testing.T) {
	t.Run("it has the metrics and fields of Define, without the expressions", func(t *testing.T) {
		def := definition(func(d *windlassv1.PresetDefinition) {
			d.Args = append(d.Args, &windlassv1.PresetArg{Flag: "-port"})
		})
		p, findings := Define(t.Context(), "ember", 3, def)
		require.Empty(t, findings)
		described := Describe("ember", 3, def)
		require.Equal(t, p.Metrics("2.1"), described.Metrics("2.1"))
		for _, q := range []*Preset{p, described} {
			q.generate, q.metrics = nil, nil
		}
		require.Equal(t, p, described)
	})
	t.Run("it accepts every definition, and generates nothing", func(t *testing.T) {
		p := Describe("ember", 1, definition(func(d *windlassv1.PresetDefinition) { d.Image = "${later}" }))
		require.Equal(t, "custom:ember/1", p.ID())
		f, findings := p.Generate(Input{Model: "hf://org/m"})
		require.Nil(t, f.Spec)
		require.Equal(t, "DefinitionInvalid", findings[0].Code)
	})
}

// loops is a condition that takes about a thousand steps.
const loops = "[1,1,1,1,1,1,1,1].all(x, [1,1,1,1,1,1,1,1].all(x, [1,1,1,1,1,1,1,1].all(x, x == 1)))"

func TestRegistry_BoundsTheWorkOfARequest(t *testing.T) {
	heavy, findings := Define(t.Context(), "ember", 1, definition(func(d *windlassv1.PresetDefinition) {
		d.Args = nil
		for range 10 {
			d.Args = append(d.Args, &windlassv1.PresetArg{Flag: "--a", When: loops})
		}
	}))
	require.Empty(t, findings)
	in := Input{Engine: "custom:ember", Model: "hf://org/m"}
	t.Run("the work of one request is bounded, however often it generates", func(t *testing.T) {
		within := Builtin().With(heavy).Within(t.Context())
		times := 0
		for ; times < 1000; times++ {
			if _, findings = within.Generate(in); HasErrors(findings) {
				break
			}
		}
		require.Equal(t, "ExpressionFailed", findings[0].Code)
		require.Contains(t, findings[0].Text, "for all examples or regions together")
		require.Greater(t, times, maxRequestCosts/maxCosts)
		require.Less(t, times, 500)
		_, findings = within.Generate(Input{Engine: "vllm", Model: "hf://org/m", GPU: GPU{Count: 1}})
		require.False(t, HasErrors(findings), "built-in presets have no expressions")
		_, findings = Builtin().With(heavy).Within(t.Context()).Generate(in)
		require.False(t, HasErrors(findings), "another request")
	})
	t.Run("it ends with the request", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		within := Builtin().With(heavy).Within(ctx)
		_, findings := within.Generate(in)
		require.False(t, HasErrors(findings))
		cancel()
		_, findings = within.Generate(in)
		require.Contains(t, findings[0].Text, context.Canceled.Error())
		p, findings := Define(ctx, "ember", 1, definition())
		require.Nil(t, p)
		require.Len(t, findings, 1)
		require.Contains(t, findings[0].Text, context.Canceled.Error())
	})
	t.Run("a loop checks whether the request has ended", func(t *testing.T) {
		// Some of these requests end in the middle of an expression.
		interrupted := 0
		for after := range int64(20) {
			_, findings := Builtin().With(heavy).Within(&endsLate{Context: t.Context(), after: after}).Generate(in)
			if HasErrors(findings) && strings.Contains(findings[0].Text, "operation interrupted") {
				interrupted++
			}
		}
		require.Positive(t, interrupted)
	})
}

// endsLate is a context that ends once Err and Done were called more than after times.
type endsLate struct {
	context.Context

	asked atomic.Int64 // a derived context asks on a goroutine of its own
	after int64
}

func (c *endsLate) Err() error {
	if c.asked.Add(1) > c.after {
		return context.Canceled
	}
	return nil
}

func (c *endsLate) Done() <-chan struct{} {
	done := make(chan struct{})
	if c.Err() != nil {
		close(done)
	}
	return done
}

func TestSplitCustom(t *testing.T) {
	for engine, want := range map[string]struct {
		name    string
		version int32
		ok      bool
	}{
		"custom:a": {"a", 0, true}, "custom:a/3": {"a", 3, true}, "custom:a/x": {"a", 0, false}, "custom:a/03": {"a", 3, false}, "custom:a/0": {"a", 0, false},
		"vllm": {"vllm", 0, false}, "custom": {"custom", 0, false},
	} {
		name, version, ok := SplitCustom(engine)
		require.Equal(t, want.ok, ok, engine)
		if ok {
			require.Equal(t, want.name, name)
			require.Equal(t, want.version, version)
		}
	}
	_, findings := Generate(Input{Engine: "custom", Model: "hf://org/m"})
	require.Contains(t, findings[0].Fix, "custom:NAME")
	_, findings = Generate(Input{Engine: "custom:x", Model: "hf://org/m"})
	require.Contains(t, findings[0].Text, `no preset "x"`)
}

func BenchmarkDefine(b *testing.B) {
	def := definition()
	for b.Loop() {
		if p, _ := Define(b.Context(), "ember", 1, def); p == nil {
			b.Fatal("refused")
		}
	}
}
