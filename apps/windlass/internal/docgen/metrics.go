package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"maps"
	"slices"
	"strings"
)

// metric is a metric that the code registers.
type metric struct {
	name, kind, help string
	labels           []string
}

// metricTrees are the sections of the page.
var metricTrees = []struct{ title, about, tree string }{
	{"Control plane", "", "apps/controlplane"},
	{"Agent", "", "apps/agent"},
	{"Gateway", "", "apps/gateway"},
	{"Model server", "It has the metrics of the engine whose command line it runs with. Without an engine, its metrics have vLLM's names, or names that begin with its own. " +
		"Every metric except those of HTTP also has the label `model_name`. Metrics of vLLM's command line have `engine`. Metrics of SGLang's scheduler have " +
		"`engine_type`, `tp_rank` and `pp_rank`.", "apps/modelserver"},
	{"Server of ONNX models", "", "apps/onnxserver"},
	{"Servers of RPCs", "Programs that serve RPCs have these: the control plane, and the agent on its listener for gateways.", "pkg/rpc"},
	{"Certificates", "The control plane, the agent and the gateway have this for each file that a flag names.", "pkg/certfile"},
	{"Connections", "The control plane has these for its listeners `api`, `peers` and `restate`, the agent for `gateways` and `xds`.", "pkg/conns"},
}

func metricsPage(s *source) (string, error) {
	var out strings.Builder
	out.WriteString(generated + "# Metrics\n\nEvery program serves its metrics at `/metrics` of `--metrics-listen` (the model server and `onnxserver` at their own port). " +
		"Every program also has the metrics of the Go runtime and of its process (`go_*`, `process_*`).\n")
	if err := checkSections(s); err != nil {
		return "", err
	}
	for _, section := range metricTrees {
		var all []metric
		for dir, p := range s.packages {
			if dir != section.tree && !strings.HasPrefix(dir, section.tree+"/") {
				continue
			}
			found, err := s.metricsOf(p)
			if err != nil {
				return "", err
			}
			all = append(all, found...)
		}
		slices.SortFunc(all, func(a, b metric) int { return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.help, b.help)) })
		// A program may create a metric in two places and use only one.
		all = slices.CompactFunc(all, func(a, b metric) bool {
			return a.name == b.name && a.kind == b.kind && a.help == b.help && slices.Equal(a.labels, b.labels)
		})
		fmt.Fprintf(&out, "\n## %s\n\n", section.title)
		if section.about != "" {
			out.WriteString(section.about + "\n\n")
		}
		t := newTable("metric", "type", "labels", "meaning")
		for _, m := range all {
			labels := ""
			if len(m.labels) > 0 {
				labels = asCode(strings.Join(m.labels, "` `"))
			}
			t.addRow(asCode(m.name), m.kind, labels, escapeProse(m.help))
		}
		out.WriteString(t.String())
	}
	return out.String(), nil
}

// checkSections returns an error if a package has metrics and no section.
func checkSections(s *source) error {
	for _, dir := range slices.Sorted(maps.Keys(s.packages)) {
		in := slices.ContainsFunc(metricTrees, func(section struct{ title, about, tree string }) bool {
			return dir == section.tree || strings.HasPrefix(dir, section.tree+"/")
		})
		found, err := s.metricsOf(s.packages[dir])
		if err != nil {
			return err
		}
		if !in && len(found) > 0 {
			return fmt.Errorf("%s has metric %s, and no section: add one to metricTrees", dir, found[0].name)
		}
	}
	return nil
}

// metricsOf returns the metrics that a package creates.
func (s *source) metricsOf(p *pkg) ([]metric, error) {
	var out []metric
	var failure error
	fail := func(n ast.Node, what string) {
		if failure == nil {
			failure = fmt.Errorf("%s: %s: write it so that docgen can read it, or extend docgen", s.fset.Position(n.Pos()), what)
		}
	}
	shared := p.makerFunctions()
	for _, f := range p.files {
		for _, decl := range f.Decls {
			locals := localsOf(decl)
			eval := evaluator{p, locals}
			made := localMakers(decl)
			for name, kind := range shared {
				made[name] = cmp.Or(made[name], kind)
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				if kind, ok := made[calleeName(call)]; ok && len(call.Args) > 1 {
					if name, ok := eval.textOf(call.Args[0]); ok {
						help, _ := eval.textOf(call.Args[1])
						out = append(out, metric{name: name, kind: kind, help: help})
					}
					return true
				}
				made := prometheusCall(call)
				switch {
				case made == "NewDesc":
					m, what := eval.metricDesc(call)
					if what != "" {
						fail(call, what)
					}
					m.kind = cmp.Or(p.kindOf(call), "gauge")
					out = append(out, m)
				case strings.HasPrefix(made, "New") && len(call.Args) > 0 && isOptions(call.Args[0]):
					m, what := eval.metricOptions(call, made)
					if what != "" {
						fail(call, what)
					}
					if m.name != "" {
						out = append(out, m)
					}
				}
				return true
			})
		}
	}
	return out, failure
}

// prometheusCall returns the name of the function of client_golang that is called, or "".
func prometheusCall(call *ast.CallExpr) string {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if x, ok := sel.X.(*ast.Ident); !ok || x.Name != "prometheus" {
		return ""
	}
	return sel.Sel.Name
}

// isOptions reports whether an argument is prometheus.CounterOpts{...} or the options of another metric type.
func isOptions(e ast.Expr) bool {
	lit, ok := e.(*ast.CompositeLit)
	if !ok {
		return false
	}
	sel, ok := lit.Type.(*ast.SelectorExpr)
	return ok && strings.HasSuffix(sel.Sel.Name, "Opts") && sel.Sel.Name != "HandlerOpts"
}

// kindName returns the type of a metric by the name of its constructor.
func kindName(constructor string) string {
	for _, suffix := range []string{"Vec", "Func"} {
		constructor = strings.TrimSuffix(constructor, suffix)
	}
	return strings.ToLower(strings.TrimPrefix(constructor, "New"))
}

// localMakers returns the local functions that create a metric from their first two parameters, name and
// help. It returns the type of the metric by the function's name.
func localMakers(decl ast.Decl) map[string]string {
	out := map[string]string{}
	ast.Inspect(decl, func(n ast.Node) bool {
		assign, ok := n.(*ast.AssignStmt)
		if !ok || len(assign.Lhs) != 1 || len(assign.Rhs) != 1 {
			return true
		}
		name, isName := assign.Lhs[0].(*ast.Ident)
		fn, isFunc := assign.Rhs[0].(*ast.FuncLit)
		if isName && isFunc {
			if kind := madeBy(fn.Type, fn.Body); kind != "" {
				out[name.Name] = kind
			}
		}
		return true
	})
	return out
}

// makerFunctions does for the package's functions what localMakers does for local functions.
func (p *pkg) makerFunctions() map[string]string {
	out := map[string]string{}
	for _, f := range p.files {
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Body != nil {
				if kind := madeBy(fn.Type, fn.Body); kind != "" {
					out[fn.Name.Name] = kind
				}
			}
		}
	}
	return out
}

// madeBy returns the type of the metric that a function creates from its parameters name and help. It returns
// "" for other functions.
func madeBy(fn *ast.FuncType, body *ast.BlockStmt) (kind string) {
	if len(fn.Params.List) == 0 {
		return ""
	}
	names := fn.Params.List[0].Names
	if len(names) < 2 || names[0].Name != "name" || names[1].Name != "help" {
		return ""
	}
	ast.Inspect(body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && len(call.Args) > 0 && isOptions(call.Args[0]) {
			kind = kindName(prometheusCall(call))
		}
		return true
	})
	return kind
}

// evaluator resolves texts and lists of texts that are literals in a package.
type evaluator struct {
	p      *pkg
	locals map[string]ast.Expr
}

func localsOf(decl ast.Decl) map[string]ast.Expr {
	out := map[string]ast.Expr{}
	ast.Inspect(decl, func(n ast.Node) bool {
		if assign, ok := n.(*ast.AssignStmt); ok && len(assign.Lhs) == len(assign.Rhs) {
			for i, left := range assign.Lhs {
				if name, ok := left.(*ast.Ident); ok {
					out[name.Name] = assign.Rhs[i]
				}
			}
		}
		return true
	})
	return out
}

func (e evaluator) lookUp(name string) (ast.Expr, bool) {
	if v, ok := e.locals[name]; ok {
		return v, true
	}
	v, ok := e.p.vars[name]
	return v, ok
}

func (e evaluator) textOf(x ast.Expr) (string, bool) {
	switch x := x.(type) {
	case *ast.BasicLit:
		return literalText(x)
	case *ast.BinaryExpr:
		a, okA := e.textOf(x.X)
		b, okB := e.textOf(x.Y)
		return a + b, okA && okB
	case *ast.Ident:
		if v, ok := e.lookUp(x.Name); ok {
			return e.textOf(v)
		}
	}
	return "", false
}

// constantTexts returns the strings of a list that is known without running the program.
func (e evaluator) constantTexts(x ast.Expr) ([]string, bool) {
	switch x := x.(type) {
	case *ast.CompositeLit:
		var out []string
		for _, item := range x.Elts {
			text, ok := e.textOf(item)
			if !ok {
				return nil, false
			}
			out = append(out, text)
		}
		return out, true
	case *ast.Ident:
		if x.Name == "nil" {
			return nil, true
		}
		if v, ok := e.lookUp(x.Name); ok {
			return e.constantTexts(v)
		}
	case *ast.CallExpr:
		switch calleeName(x) {
		case "Clone":
			return e.constantTexts(x.Args[0])
		case "append", "Concat":
			var out []string
			for i, arg := range x.Args {
				if i == 0 || x.Ellipsis.IsValid() || calleeName(x) == "Concat" {
					more, ok := e.constantTexts(arg)
					if !ok {
						return nil, false
					}
					out = append(out, more...)
					continue
				}
				text, ok := e.textOf(arg)
				if !ok {
					return nil, false
				}
				out = append(out, text)
			}
			return out, true
		}
	}
	return nil, false
}

func (e evaluator) metricOptions(call *ast.CallExpr, constructor string) (m metric, problem string) {
	m.kind = kindName(constructor)
	for _, field := range call.Args[0].(*ast.CompositeLit).Elts { //nolint:forcetypeassert // isOptions has checked the type
		pair, ok := field.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		key, _ := pair.Key.(*ast.Ident)
		switch {
		case key == nil:
		case key.Name == "Name":
			if m.name, ok = e.textOf(pair.Value); !ok {
				if v, isParameter := pair.Value.(*ast.Ident); isParameter && v.Name == "name" {
					return metric{}, "" // makerFunctions or localMakers finds the function
				}
				return m, "the metric's name is not written out"
			}
		case key.Name == "Help":
			if m.help, ok = e.textOf(pair.Value); !ok {
				return m, "the metric's help is not written out"
			}
		case key.Name == "ConstLabels":
			value := pair.Value
			if name, isName := value.(*ast.Ident); isName {
				value, _ = e.lookUp(name.Name)
			}
			constant, ok := value.(*ast.CompositeLit)
			if !ok {
				return m, "the metric's labels are not written out"
			}
			for _, label := range constant.Elts {
				if name, ok := e.textOf(label.(*ast.KeyValueExpr).Key); ok { //nolint:forcetypeassert // the elements of a map literal have this type
					m.labels = append(m.labels, name)
				}
			}
		}
	}
	if strings.HasSuffix(constructor, "Vec") && len(call.Args) > 1 {
		labels, ok := e.constantTexts(call.Args[1])
		if !ok {
			return m, "the metric's labels are not written out"
		}
		m.labels = append(m.labels, labels...)
	}
	if m.name == "" {
		return m, "the metric has no name"
	}
	return m, ""
}

func (e evaluator) metricDesc(call *ast.CallExpr) (m metric, problem string) {
	var ok bool
	if m.name, ok = e.textOf(call.Args[0]); !ok {
		return m, "the metric's name is not written out"
	}
	if m.help, ok = e.textOf(call.Args[1]); !ok {
		return m, "the metric's help is not written out"
	}
	if m.labels, ok = e.constantTexts(call.Args[2]); !ok {
		return m, "the metric's labels are not written out"
	}
	return m, ""
}

// kindOf returns the metric type that a description (a prometheus.Desc) is used with. It finds the variable
// or field that holds the description, and the call that uses it.
func (p *pkg) kindOf(desc *ast.CallExpr) string {
	holder := ""
	for _, f := range p.files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				for i, v := range n.Values {
					if v == desc {
						holder = n.Names[i].Name
					}
				}
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && n.Value == desc {
					holder = key.Name
				}
			}
			return true
		})
	}
	kind := ""
	for _, f := range p.files {
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) < 2 {
				return true
			}
			used := ""
			switch first := call.Args[0].(type) {
			case *ast.Ident:
				used = first.Name
			case *ast.SelectorExpr:
				used = first.Sel.Name
			}
			if used != holder {
				return true
			}
			for _, arg := range call.Args[1:] {
				if sel, ok := arg.(*ast.SelectorExpr); ok && strings.HasSuffix(sel.Sel.Name, "Value") {
					kind = strings.ToLower(strings.TrimSuffix(sel.Sel.Name, "Value"))
				}
			}
			return true
		})
	}
	return kind
}
