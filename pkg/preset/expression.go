package preset

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// Variable is a value that expressions of a workspace's presets read.
type Variable struct {
	Name string
	// Type is "text", "number", "true or false" or "list of texts".
	Type  string
	About string

	of func(*draft) any
}

// variables are the values that expressions can read: the Input, and values that the checks derived from it.
var variables = []Variable{
	{"engineVersion", "text", "engineVersion of serve, or the preset's default.", func(d *draft) any { return d.engine }},
	{"model", "text", "model of serve, as it is written.", func(d *draft) any { return d.in.Model }},
	{"scheme", "text", "Scheme of the model: `hf`, `file`, `s3`, `gs`, `https` or `oci`.", func(d *draft) any { return d.model.scheme }},
	{"path", "text", "Model without its scheme and revision: `ORG/NAME`, or `/models/m`.", func(d *draft) any { return d.model.path }},
	{"revision", "text", "Revision after the `@` of a model of `hf://`.", func(d *draft) any { return d.model.revision }},
	{"weights", "text", "Model as most engines take it: the path for `hf` and `file`, else the whole URL.", func(d *draft) any { return d.weightsName() }},
	{"name", "text", "Name of the model in requests.", func(d *draft) any { return d.in.Name }},
	{"context", "number", "Longest prompt with its answer, in tokens.", func(d *draft) any { return d.in.Context }},
	{"tensor", "number", "GPUs that share each layer, at least 1. It is derived if the app leaves it out.", func(d *draft) any { return d.parallel.Tensor }},
	{"pipeline", "number", "Groups of GPUs that each hold a part of the layers, at least 1.", func(d *draft) any { return d.parallel.Pipeline }},
	{"data", "number", "Copies of the model in an instance, at least 1.", func(d *draft) any { return d.parallel.Data }},
	{"options", "list of texts", "Names of the options that the app sets, sorted: `\"trust-remote-code\" in options`.", (*draft).optionsSet},
	{"hosts", "number", "Hosts of an instance, at least 1.", func(d *draft) any { return d.in.hostCount() }},
	{"gpus", "number", "GPUs of an instance on each host.", func(d *draft) any { return d.in.GPU.Count }},
	{"gpuProduct", "text", "Product of the GPUs.", func(d *draft) any { return d.in.GPU.Product }},
	{"gpuMemoryMib", "number", "Memory of a GPU by its product or minMemoryMib.", func(d *draft) any { bytes, _ := d.in.GPU.memoryBytes(); return int(bytes >> 20) }},
	{"memoryMib", "number", "Memory of an instance on each host.", func(d *draft) any { return d.in.MemoryMiB }},
	{"replicas", "number", "Replicas in each region.", func(d *draft) any { return d.in.Replicas }},
	{"cachePath", "text", "Mount path of the model cache.", func(d *draft) any { return d.in.CachePath }},
	{"layers", "number", "Layers of the model, by its facts.", func(d *draft) any { return d.modelFacts().Layers }},
	{"heads", "number", "Attention heads.", func(d *draft) any { return d.modelFacts().Heads }},
	{"kvHeads", "number", "Key-value heads.", func(d *draft) any { return d.modelFacts().KVHeads }},
	{"headSize", "number", "Size of a head.", func(d *draft) any { return d.modelFacts().HeadSize }},
	{"maxContext", "number", "Longest context of the model.", func(d *draft) any { return d.modelFacts().MaxContext }},
	{"weightBytes", "number", "Bytes of all weights.", func(d *draft) any { return d.modelFacts().WeightBytes }},
	{"dtype", "text", "Type of most weights.", func(d *draft) any { return d.modelFacts().DType }},
}

// Variables returns the variables that expressions of a workspace's presets can read. A number that the app leaves
// out is 0, and a text is empty.
func Variables() []Variable { return variables }

func (d *draft) optionsSet() any {
	names := []string{}
	for _, name := range d.in.optionNames() {
		if !d.in.Options[name].Off {
			names = append(names, name)
		}
	}
	return names
}

// modelFacts returns the model's facts, or zero Facts if they are not known.
func (d *draft) modelFacts() Facts {
	if d.in.Facts == nil {
		return Facts{}
	}
	return *d.in.Facts
}

const (
	// maxExpression is the maximum length of an expression, in characters. maxDepth is the maximum depth of its
	// nested parts.
	maxExpression = 1024
	maxDepth      = 32
	// maxCost bounds the work of an expression, and with it the size of its result. CEL knows the cost of its
	// standard functions. A function that is added here must have a known cost, too, or a result of bounded size.
	maxCost = 10_000
	// maxExpressions is the maximum number of expressions in a definition. maxCosts bounds the work of all of them.
	maxExpressions = 512
	maxCosts       = 100_000
	// maxRequestCosts bounds the work of all expressions within one request, which may generate many times: for each
	// example of a definition, or for each region with overrides.
	maxRequestCosts = 500_000
	// interruptEvery is the number of elements of a loop between two checks whether the request has ended.
	interruptEvery = 100
)

var celTypes = map[string]*cel.Type{
	"text": cel.StringType, "number": cel.IntType, "list of texts": cel.ListType(cel.StringType),
}

// environment returns the variables and functions of expressions. It makes them once, because that takes longer than
// compiling most definitions.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	options := []cel.EnvOption{
		cel.ParserExpressionSizeLimit(maxExpression), cel.ParserRecursionLimit(maxDepth),
		cel.Function("atLeast", cel.Overload("atLeast_string_string", []*cel.Type{cel.StringType, cel.StringType}, cel.BoolType, cel.BinaryBinding(atLeast))),
	}
	for _, v := range variables {
		options = append(options, cel.Variable(v.Name, celTypes[v.Type]))
	}
	return cel.NewEnv(options...)
})

// bound limits the work of expressions within one request. It is not safe for concurrent use.
type bound struct {
	ctx context.Context
	// cost is the work of all expressions so far.
	cost uint64
}

// Within returns the registry for one request. The expressions of workspaces' presets stop when ctx ends. Their work
// is bounded, however often the request calls Generate. The result is not safe for concurrent use.
func (r *Registry) Within(ctx context.Context) *Registry {
	out, within := &Registry{slices.Clone(r.presets)}, &bound{ctx: ctx}
	for i, p := range out.presets {
		if strings.HasPrefix(p.Name, CustomPrefix) {
			copied := *p
			copied.within, out.presets[i] = within, &copied
		}
	}
	return out
}

// atLeast reports whether a version of an engine is least or later.
func atLeast(version, least ref.Val) ref.Val {
	a, isText := version.(types.String)
	b, also := least.(types.String)
	if !isText || !also {
		return types.MaybeNoSuchOverloadErr(version)
	}
	return types.Bool(compareVersions(string(a), string(b)) >= 0)
}

// expression is a compiled expression. A nil expression has an empty source.
type expression struct {
	// field is the path in the definition: "args[2].when".
	field   string
	program cel.Program
}

// template is a text with expressions in it.
type template struct {
	field string
	parts []part
}

// part is a literal text, or an expression.
type part struct {
	text string
	expr *expression
}

// compiler compiles the expressions of one definition, and collects their errors.
type compiler struct {
	ctx      context.Context
	env      *cel.Env
	compiled int
	// stopped is true after ctx has ended.
	stopped  bool
	findings []Finding
}

func (c *compiler) fail(code, field, text, fix string) {
	c.findings = append(c.findings, Finding{Severity: Error, Code: code, Field: "/" + field, Text: text, Fix: fix})
}

// compileExpression compiles a source, and fails if its result has none of the types in want. It returns nil for an empty
// source.
func (c *compiler) compileExpression(field, source string, want ...*cel.Type) *expression {
	if strings.TrimSpace(source) == "" {
		return nil
	}
	if c.compiled++; c.compiled > maxExpressions {
		if c.compiled == maxExpressions+1 {
			c.fail("DefinitionInvalid", field, fmt.Sprintf("the definition has more than %d expressions", maxExpressions), "write fewer")
		}
		return nil
	}
	if err := c.ctx.Err(); err != nil {
		if !c.stopped {
			c.fail("DefinitionInvalid", field, "the request ended before the definition was checked: "+err.Error(), "try again")
		}
		c.stopped = true
		return nil
	}
	ast, issues := c.env.Compile(source)
	if issues.Err() != nil {
		first := issues.Errors()[0]
		c.fail("ExpressionInvalid", field, fmt.Sprintf("%q: %s", clipText(source), strings.TrimSuffix(first.Message, " (in container '')")), expressionFix(first.Message))
		return nil
	}
	fits, names := false, make([]string, 0, len(want))
	for _, w := range want {
		fits = fits || ast.OutputType().IsExactType(w)
		names = append(names, typeName(w))
	}
	if !fits {
		c.fail("ExpressionInvalid", field, fmt.Sprintf("%q gives %s", clipText(source), typeName(ast.OutputType())), "write one that gives "+strings.Join(names, " or "))
		return nil
	}
	program, err := c.env.Program(ast, cel.CostLimit(maxCost), cel.InterruptCheckFrequency(interruptEvery))
	if err != nil {
		c.fail("ExpressionInvalid", field, fmt.Sprintf("%q: %v", clipText(source), err), "write a shorter one")
		return nil
	}
	return &expression{field, program}
}

// expressionFix returns the fix for an error message of CEL.
func expressionFix(message string) string {
	if strings.Contains(message, "undeclared reference") {
		names := make([]string, 0, len(variables))
		for _, v := range variables {
			names = append(names, v.Name)
		}
		return "the variables are " + strings.Join(names, ", ")
	}
	return `write an expression of CEL, such as context > 0 && scheme == "hf"`
}

func typeName(t *cel.Type) string {
	for name, of := range celTypes {
		if t.IsExactType(of) {
			return "a " + name
		}
	}
	if t.IsExactType(cel.BoolType) {
		return "true or false"
	}
	return "a value of type " + t.String()
}

// compileTemplate compiles a text with expressions.
func (c *compiler) compileTemplate(field, text string) template {
	out := template{field: field}
	literal := ""
	for text != "" {
		at := strings.Index(text, "${")
		if at < 0 {
			literal += text
			break
		}
		if at > 0 && text[at-1] == '$' {
			literal, text = literal+text[:at-1]+"${", text[at+2:]
			continue
		}
		source, rest, ok := untilBrace(text[at+2:])
		if !ok {
			c.fail("TemplateInvalid", field, fmt.Sprintf("%q: a ${ has no }", clipText(text)), "close the expression, or write $${ for the text ${")
			return out
		}
		if strings.TrimSpace(source) == "" {
			c.fail("TemplateInvalid", field, "${} has no expression", "name a variable, such as ${weights}")
			return out
		}
		if literal, text = literal+text[:at], rest; literal != "" {
			out.parts = append(out.parts, part{text: literal})
			literal = ""
		}
		if e := c.compileExpression(field, source, cel.StringType, cel.IntType, cel.BoolType, cel.DoubleType); e != nil {
			out.parts = append(out.parts, part{expr: e})
		}
	}
	if literal != "" {
		out.parts = append(out.parts, part{text: literal})
	}
	return out
}

// untilBrace splits a text at the brace that closes an expression. Braces in quotes and pairs of braces belong to
// the expression.
func untilBrace(text string) (source, rest string, ok bool) {
	depth, quote := 0, byte(0)
	for i := 0; i < len(text); i++ {
		switch b := text[i]; {
		case quote != 0 && b == '\\':
			i++
		case quote != 0:
			if b == quote {
				quote = 0
			}
		case b == '"' || b == '\'':
			quote = b
		case b == '{':
			depth++
		case b == '}' && depth == 0:
			return text[:i], text[i+1:], true
		case b == '}':
			depth--
		}
	}
	return "", "", false
}

// evaluation evaluates expressions for one draft. After a failure it returns empty values.
type evaluation struct {
	d      *draft
	vars   map[string]any
	within *bound
	// cost is the work of all expressions so far.
	cost   uint64
	failed bool
}

func (d *draft) newEvaluation() *evaluation {
	e := &evaluation{d: d, vars: make(map[string]any, len(variables)), within: d.preset.within}
	if e.within == nil {
		e.within = &bound{ctx: context.Background()}
	}
	for _, v := range variables {
		e.vars[v.Name] = v.of(d)
	}
	return e
}

func (e *evaluation) fail(field, text string) {
	if !e.failed {
		e.d.fail("ExpressionFailed", "engine", fmt.Sprintf("%s: %s: %s", e.d.preset.ID(), field, text), "change the app's input, or correct the preset")
	}
	e.failed = true
}

func (e *evaluation) valueOf(x *expression) ref.Val {
	if e.failed {
		return nil
	}
	if err := e.within.ctx.Err(); err != nil {
		e.fail(x.field, "the request ended before it was evaluated: "+err.Error())
		return nil
	}
	v, details, err := x.program.ContextEval(e.within.ctx, e.vars)
	if cost := details.ActualCost(); cost != nil {
		e.cost += *cost
		e.within.cost += *cost
	}
	switch {
	case err != nil:
		e.fail(x.field, err.Error())
	case e.cost > maxCosts:
		e.fail(x.field, "the expressions of the preset take too much work together")
	case e.within.cost > maxRequestCosts:
		e.fail(x.field, "the expressions of the preset take too much work for all examples or regions together")
	default:
		return v
	}
	return nil
}

// conditionHolds returns the value of a condition. A nil condition is true.
func (e *evaluation) conditionHolds(x *expression) bool {
	if x == nil {
		return true
	}
	b, ok := e.valueOf(x).(types.Bool)
	return ok && bool(b)
}

// numberOf returns the value of an expression. A nil expression is 0.
func (e *evaluation) numberOf(x *expression) int64 {
	if x == nil {
		return 0
	}
	n, _ := e.valueOf(x).(types.Int)
	return int64(n)
}

// maxText is the maximum length in bytes of a template's text. It is the API's limit for an argument.
const maxText = 32768

// expandText returns the text of a template.
func (e *evaluation) expandText(t template) string {
	var b strings.Builder
	for _, p := range t.parts {
		if p.expr == nil {
			b.WriteString(p.text)
			continue
		}
		switch v := e.valueOf(p.expr).(type) {
		case types.String:
			b.WriteString(string(v))
		case types.Int:
			b.WriteString(strconv.FormatInt(int64(v), 10))
		case types.Double:
			b.WriteString(strconv.FormatFloat(float64(v), 'g', -1, 64))
		case types.Bool:
			b.WriteString(strconv.FormatBool(bool(v)))
		}
	}
	if b.Len() > maxText || strings.ContainsRune(b.String(), 0) {
		e.fail(t.field, fmt.Sprintf("the text contains a zero byte, or has more than %d bytes", maxText))
		return ""
	}
	return b.String()
}
