package preset

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"google.golang.org/protobuf/proto"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// CustomPrefix begins the names of engines whose preset belongs to a workspace: "custom:NAME".
const CustomPrefix = "custom:"

// SplitCustom splits the name of an engine, "custom:NAME" or "custom:NAME/3". version is 0 for the newest version. ok
// is false for the name of a built-in preset, and for a version that is not a number.
func SplitCustom(engine string) (name string, version int32, ok bool) {
	name, ok = strings.CutPrefix(engine, CustomPrefix)
	name, text, has := strings.Cut(name, "/")
	if !ok || !has {
		return name, 0, ok
	}
	_, err := fmt.Sscanf(text, "%d", &version)
	return name, version, err == nil && version > 0 && fmt.Sprint(version) == text
}

// custom is a compiled definition.
type custom struct {
	definition *windlassv1.PresetDefinition
	image      template
	command    []template
	args       []customArg
	env        []customVariable
	shm        *expression
	rules      []customRule
}

type customArg struct {
	flag   string
	values []template
	when   *expression
}

type customVariable struct {
	name  string
	value template
	when  *expression
}

type customRule struct {
	severity     Severity
	code, field  string
	message, fix template
	when         *expression
}

// Describe returns the preset of a workspace's definition without its expressions, for views. It is cheap and never
// fails, not even for a definition that this release refuses. The Generate of this preset always fails.
func Describe(name string, version int, def *windlassv1.PresetDefinition) *Preset {
	p := &Preset{
		Name: CustomPrefix + name, Version: version, Title: cmp.Or(def.GetTitle(), name),
		DefaultEngine: strings.TrimPrefix(def.GetDefaultEngineVersion(), "v"), From: def.GetEngineFrom(), Before: def.GetEngineBefore(),
		Schemes: def.GetModelSchemes(), MemoryShare: def.GetMemoryShare(),
		Aliases: map[string]string{}, taken: map[string]string{},
		axes: axes{
			tensor:   slices.Contains(def.GetParallelism(), "tensor"),
			pipeline: slices.Contains(def.GetParallelism(), "pipeline"),
			data:     slices.Contains(def.GetParallelism(), "data"),
		},
		wholeInstance: def.GetWholeInstance(), severalHosts: def.GetHosts() != nil, hostsFrom: def.GetHosts().GetEngineFrom(),
		generate: func(d *draft) {
			d.fail("DefinitionInvalid", "engine", d.preset.ID()+" was read without its expressions", "report it: this release is broken")
		},
		metrics: func(engine string) []Metric { return metricsOf(def, engine) },
	}
	for _, s := range def.GetSources() {
		p.Sources = append(p.Sources, Source{s.GetAbout(), s.GetPage(), s.GetVersion()})
	}
	p.describeFlags(def)
	return p
}

// describeFlags sets the preset's aliases and reserved flags.
func (p *Preset) describeFlags(def *windlassv1.PresetDefinition) {
	maps.Copy(p.Aliases, def.GetAliases())
	for _, a := range def.GetArgs() {
		if a.GetFlag() == "" {
			continue
		}
		if a.GetReserved() {
			p.taken[a.GetFlag()] = ""
		} else if a.GetField() != "" {
			p.taken[a.GetFlag()] = a.GetField()
		}
		// The option port stands for the flag -port if the engine writes it with one dash.
		if long := "-" + a.GetFlag(); !strings.HasPrefix(a.GetFlag(), "--") && len(long) > 3 && p.Aliases[long] == "" {
			p.Aliases[long] = a.GetFlag()
		}
	}
}

// Define returns the preset of a workspace's definition, and findings. The Field of a finding is a path in the
// definition, after a slash: "/args[2].when". If a finding is an error, the preset is nil. The definition must satisfy
// its schema. If ctx ends, Define stops early and returns an error among the findings.
func Define(ctx context.Context, name string, version int, def *windlassv1.PresetDefinition) (*Preset, []Finding) {
	env, err := environment()
	if err != nil {
		return nil, []Finding{{Severity: Error, Code: "DefinitionInvalid", Field: "/", Text: err.Error(), Fix: "report it: this release is broken"}}
	}
	def = proto.CloneOf(def)
	c, p := &compiler{ctx: ctx, env: env}, Describe(name, version, def)
	p.generate = c.compileCustom(def).fillDraft
	c.checkNames(def)
	c.checkRest(p, def)
	if len(c.findings) > 0 {
		return nil, c.findings
	}
	return p, nil
}

// compileCustom compiles all templates and expressions.
func (c *compiler) compileCustom(def *windlassv1.PresetDefinition) *custom {
	made := &custom{
		definition: def, image: c.compileTemplate("image", def.GetImage()),
		shm: c.compileExpression("shmMib", def.GetShmMib(), cel.IntType),
	}
	for i, word := range def.GetCommand() {
		made.command = append(made.command, c.compileTemplate(fmt.Sprintf("command[%d]", i), word))
	}
	for i, a := range def.GetArgs() {
		at := fmt.Sprintf("args[%d]", i)
		arg := customArg{flag: a.GetFlag(), when: c.compileExpression(at+".when", a.GetWhen(), cel.BoolType)}
		for j, value := range a.GetValues() {
			arg.values = append(arg.values, c.compileTemplate(fmt.Sprintf("%s.values[%d]", at, j), value))
		}
		made.args = append(made.args, arg)
	}
	for i, v := range def.GetEnv() {
		at := fmt.Sprintf("env[%d]", i)
		made.env = append(made.env, customVariable{v.GetName(), c.compileTemplate(at+".value", v.GetValue()), c.compileExpression(at+".when", v.GetWhen(), cel.BoolType)})
	}
	for i, r := range def.GetRules() {
		at := fmt.Sprintf("rules[%d]", i)
		made.rules = append(made.rules, customRule{
			severityOf(r.GetSeverity()), r.GetCode(), inputField(r.GetField()), c.compileTemplate(at+".message", r.GetMessage()), c.compileTemplate(at+".fix", r.GetFix()),
			c.compileExpression(at+".when", r.GetWhen(), cel.BoolType),
		})
	}
	return made
}

func severityOf(s windlassv1.PresetFinding_Severity) Severity {
	switch s {
	case windlassv1.PresetFinding_SEVERITY_ERROR:
		return Error
	case windlassv1.PresetFinding_SEVERITY_NOTE:
		return Note
	case windlassv1.PresetFinding_SEVERITY_UNSPECIFIED, windlassv1.PresetFinding_SEVERITY_WARNING:
	}
	return Warning
}

// inputField returns the Field of a finding about a field of the app's file.
func inputField(path string) string {
	if field, ok := strings.CutPrefix(path, "serve."); ok {
		return field
	}
	return "/" + path
}

// checkNames checks the names of flags.
func (c *compiler) checkNames(def *windlassv1.PresetDefinition) {
	for _, alias := range slices.Sorted(maps.Keys(def.GetAliases())) {
		if _, also := def.GetAliases()[def.GetAliases()[alias]]; also {
			c.fail("AliasInvalid", fmt.Sprintf("aliases[%q]", alias), "it leads to another alias", "name the flag as in args")
		}
	}
	for i, a := range def.GetArgs() {
		at := fmt.Sprintf("args[%d]", i)
		if flag, alias := def.GetAliases()[a.GetFlag()]; alias {
			c.fail("AliasInvalid", at+".flag", fmt.Sprintf("%s is an alias of %s", a.GetFlag(), flag), "write "+flag)
		}
		if a.GetFlag() == "" && len(a.GetValues()) == 0 {
			c.fail("DefinitionInvalid", at, "it has neither a flag nor values", "set one of them, or remove the element")
		}
		if a.GetFlag() == "" && (a.GetField() != "" || a.GetReserved()) {
			c.fail("DefinitionInvalid", at+".flag", "words without a flag are not options", "name the flag, or remove field and reserved")
		}
	}
}

// checkRest checks the parts of a definition that neither the schema nor the compiler of expressions checks.
func (c *compiler) checkRest(p *Preset, def *windlassv1.PresetDefinition) {
	for _, v := range []struct{ field, version string }{
		{"defaultEngineVersion", p.DefaultEngine}, {"engineFrom", p.From}, {"engineBefore", p.Before}, {"hosts.engineFrom", p.hostsFrom},
	} {
		if v.version != "" && !versionText(v.version) {
			c.fail("DefinitionInvalid", v.field, fmt.Sprintf("%q is not a version", clipText(v.version)), "use letters, digits, dots, dashes and underscores, such as 0.20.0")
		}
	}
	if p.From != "" && p.Before != "" && compareVersions(p.From, p.Before) >= 0 {
		c.fail("DefinitionInvalid", "engineBefore", fmt.Sprintf("no version is from %s and before %s", p.From, p.Before), "set a later engineBefore")
	}
	if def.GetHosts() != nil && !slices.ContainsFunc(def.GetExamples(), func(e *windlassv1.PresetExample) bool { return e.GetHosts() > 1 && e.GetFails() == "" }) {
		c.fail("DefinitionInvalid", "examples", "the definition has hosts, and no example shows a server on several hosts", "add an example with hosts: 2, or remove hosts")
	}
	if def.GetImage() == "" && len(def.GetCommand()) == 0 {
		c.fail("DefinitionInvalid", "image", "the definition has no image and no command: there is nothing to run", "set one of them")
	}
	if (p.axes.pipeline || p.axes.data) && !p.axes.tensor {
		c.fail("DefinitionInvalid", "parallelism", "pipeline and data need tensor, because they divide the GPUs that tensor leaves", `add "tensor"`)
	}
	ports := map[string]bool{"": true}
	for _, port := range def.GetPorts() {
		ports[port.GetName()] = true
	}
	if len(def.GetPorts()) == 0 {
		ports["http"] = true
	}
	for i, m := range def.GetMetrics() {
		if !ports[m.GetPort()] {
			c.fail("DefinitionInvalid", fmt.Sprintf("metrics[%d].port", i), fmt.Sprintf("no port has the name %q", clipText(m.GetPort())), "name a port of ports")
		}
	}
	for i, r := range def.GetRules() {
		if severityOf(r.GetSeverity()) == Error && r.GetFix() == "" {
			c.fail("DefinitionInvalid", fmt.Sprintf("rules[%d].fix", i), "a rule that is an error needs a fix", "say what to change in the app's file")
		}
	}
}

// fillDraft fills in the draft from the definition.
func (c *custom) fillDraft(d *draft) {
	e, def := d.newEvaluation(), c.definition
	d.spec.Image = e.expandText(c.image)
	for _, word := range c.command {
		d.spec.Command = append(d.spec.Command, e.expandText(word))
	}
	for _, a := range c.args {
		if !e.conditionHolds(a.when) {
			continue
		}
		var values []string
		for _, v := range a.values {
			values = append(values, e.expandText(v))
		}
		if a.flag == "" {
			d.flags = append(d.flags, flag{values: values})
			continue
		}
		d.flags.set(a.flag, values...)
	}
	for _, v := range c.env {
		if e.conditionHolds(v.when) {
			d.setEnv(v.name, e.expandText(v.value))
		}
	}
	d.start("/health", 30*time.Second)
	if def.GetHealthCheck() != nil {
		proto.Merge(d.spec.GetHealthCheck(), def.GetHealthCheck())
	}
	if def.GetProgressDeadline() != nil {
		d.spec.ProgressDeadline = proto.CloneOf(def.GetProgressDeadline())
	}
	if def.GetTerminationGrace() != nil {
		d.spec.TerminationGrace = proto.CloneOf(def.GetTerminationGrace())
	}
	if d.setPort(0); len(def.GetPorts()) > 0 {
		d.spec.Ports = proto.CloneOf(def).GetPorts()
	}
	if shm := e.numberOf(c.shm); shm < 0 || shm > math.MaxInt32 {
		e.fail("shmMib", fmt.Sprintf("%d is not a valid size", shm))
	} else if shm > 0 {
		d.setShm(int32(shm))
	}
	for _, r := range c.rules {
		if r.when != nil && e.conditionHolds(r.when) {
			d.add(r.severity, r.code, r.field, e.expandText(r.message), e.expandText(r.fix))
		}
	}
}

// metricsOf returns the metrics of a version of the engine.
func metricsOf(def *windlassv1.PresetDefinition, engine string) []Metric {
	first := "http"
	if ports := def.GetPorts(); len(ports) > 0 {
		first = ports[0].GetName()
	}
	var list []Metric
	for _, m := range def.GetMetrics() {
		if m.GetEngineFrom() != "" && compareVersions(engine, m.GetEngineFrom()) < 0 || m.GetEngineBefore() != "" && compareVersions(engine, m.GetEngineBefore()) >= 0 {
			continue
		}
		if slices.ContainsFunc(list, func(have Metric) bool { return have.Signal == m.GetSignal() }) {
			continue
		}
		list = append(list, Metric{m.GetSignal(), m.GetMetric(), cmp.Or(m.GetPort(), first), cmp.Or(m.GetPath(), "/metrics")})
	}
	return list
}
