package main

import (
	"fmt"
	"go/ast"
	"maps"
	"regexp"
	"slices"
	"strings"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	runtimeDir = "apps/agent/internal/runtime"
	planDir    = "apps/controlplane/internal/plan"
	scalerDir  = "apps/controlplane/internal/scaler"
	pinsDir    = "apps/controlplane/internal/plan/pins"
	rollupDir  = "apps/controlplane/internal/rollup"
	agentDir   = "apps/agent/internal/reconcile"
	remedy     = "[Troubleshooting](../guides/troubleshooting.md) has the cause and the remedy of each.\n\n"
)

// errorNames returns the reasons of errors in the order of their numbers, without UNSPECIFIED.
func errorNames() []string {
	var out []string
	values := windlassv1.ErrorReason(0).Descriptor().Values()
	numbers := slices.Sorted(maps.Keys(windlassv1.ErrorReason_name))
	for _, n := range numbers {
		if n != 0 {
			out = append(out, string(values.ByNumber(windlassv1.ErrorReason(n).Number()).Name()))
		}
	}
	return out
}

func errorReasons(s *source) (string, error) {
	t := newTable("reason", "number", "meaning")
	for _, name := range errorNames() {
		comment, ok := s.comments["windlass.v1.ErrorReason."+name]
		if !ok {
			return "", fmt.Errorf("%s has no comment in proto/windlass/v1", name)
		}
		t.addRow(asCode(name), fmt.Sprint(windlassv1.ErrorReason_value[name]), escapeProse(comment))
	}
	return generated + "# Error reasons\n\nEvery error of the API carries an `ErrorDetail` with one of these reasons, the field at fault and what to do. " + remedy + t.String(), nil
}

func instanceReasons(s *source) (string, error) {
	all, err := s.constantsWithPrefix(runtimeDir, "Reason")
	if err != nil {
		return "", err
	}
	return generated + "# Instance reasons\n\nAn agent gives an instance, or a deployment that its region refuses, one of these reasons. `windlass list instances APP` shows them. " +
		remedy + reasonTable(all), nil
}

// rolloutConstants returns the reasons that the control plane sets, and the reasons with which an agent says
// that it waits. Some have the same name as a reason of an instance.
func rolloutConstants(s *source) ([]constant, error) {
	all, err := s.constantsWithPrefix(planDir, "Reason")
	if err != nil {
		return nil, err
	}
	more, err := s.constantsWithPrefix(rollupDir, "Reason")
	if err != nil {
		return nil, err
	}
	all = append(all, more...)
	waits, err := waitConstants(s)
	if err != nil {
		return nil, err
	}
	all = append(all, waits...)
	slices.SortFunc(all, func(a, b constant) int { return strings.Compare(a.value, b.value) })
	return slices.CompactFunc(all, func(a, b constant) bool { return a.value == b.value }), nil
}

// waitConstants returns the reasons with which an agent says that an app or a deployment waits. An agent's code that
// is a history entry is not one of them.
func waitConstants(s *source) ([]constant, error) {
	all, err := s.constantsWithPrefix(agentDir, "code")
	if err != nil {
		return nil, err
	}
	entries, err := historyEntries(s)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(c constant) bool {
		return slices.ContainsFunc(entries, func(e entry) bool { return e.name == c.value })
	}), nil
}

func rolloutReasons(s *source) (string, error) {
	all, err := rolloutConstants(s)
	if err != nil {
		return "", err
	}
	return generated + "# Reasons of deployments, rollouts and regions\n\nThe control plane gives these reasons itself, or an agent gives them while an app or a deployment waits in its region. A deployment or region that fails because of its instances " +
		"carries the [reason of the instance](instance-reasons.md). `windlass rollout status APP` shows them. " + remedy + reasonTable(all), nil
}

func reasonTable(all []constant) string {
	t := newTable("reason", "meaning")
	for _, c := range all {
		comment := strings.TrimPrefix(c.comment, c.name+" ")
		comment = strings.TrimPrefix(strings.TrimPrefix(comment, "is why "), "means that ")
		t.addRow(asCode(c.value), escapeProse(comment))
	}
	return t.String()
}

// entry is a kind of history entry, and the package that writes it.
type entry struct{ name, by string }

var camel = regexp.MustCompile(`^[A-Z][a-z]+([A-Z][a-z]+)*$`)

// writers are the packages that write history, by folder.
var writers = map[string]string{
	planDir:                             "the planner",
	pinsDir:                             "the planner",
	"apps/controlplane/internal/api":    "a call",
	"apps/controlplane/internal/ingest": "an agent",
	scalerDir:                           "scaling",
	"apps/controlplane/internal/fleet":  "the control plane's check of domains",
	"apps/controlplane/internal/model":  "the control plane's check of domains",
}

// historyEntries finds the values of the field What of model.History: literals of that field, arguments of
// parameters named what, assignments to variables named what, and first results of a function named what.
func historyEntries(s *source) ([]entry, error) {
	found := map[string]string{}
	for dir, by := range writers {
		p := s.packages[dir]
		if p == nil {
			return nil, fmt.Errorf("no package %s", dir)
		}
		positions := whatParameters(p)
		add := func(e ast.Expr) {
			if text, ok := literalText(e); ok && camel.MatchString(text) {
				if _, known := found[text]; !known || by == writers[planDir] {
					found[text] = by
				}
			}
		}
		for _, f := range p.files {
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					if i, ok := positions[calleeName(n)]; ok && i < len(n.Args) {
						add(n.Args[i])
					}
				case *ast.KeyValueExpr:
					if key, ok := n.Key.(*ast.Ident); ok && key.Name == "What" {
						add(n.Value)
					}
				case *ast.AssignStmt:
					for i, left := range n.Lhs {
						if name, ok := left.(*ast.Ident); ok && name.Name == "what" && i < len(n.Rhs) {
							add(n.Rhs[i])
						}
					}
				case *ast.FuncDecl:
					if n.Name.Name == "what" {
						ast.Inspect(n, func(n ast.Node) bool {
							if r, ok := n.(*ast.ReturnStmt); ok && len(r.Results) > 0 {
								add(r.Results[0])
							}
							return true
						})
					}
				}
				return true
			})
		}
	}
	if err := checkComplete(s, found); err != nil {
		return nil, err
	}
	var out []entry
	for _, name := range slices.Sorted(maps.Keys(found)) {
		out = append(out, entry{name, found[name]})
	}
	return out, nil
}

// writesHistory reports whether the file has a model.History with a literal as What.
func writesHistory(f *ast.File) (writes bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		lit, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		of, ok := lit.Type.(*ast.SelectorExpr)
		if !ok || of.Sel.Name != "History" {
			return true
		}
		for _, e := range lit.Elts {
			pair, ok := e.(*ast.KeyValueExpr)
			if !ok {
				continue
			}
			key, ok := pair.Key.(*ast.Ident)
			_, isText := literalText(pair.Value)
			writes = writes || ok && isText && key.Name == "What"
		}
		return true
	})
	return writes
}

// whatParameters returns the position of the parameter what, by function.
func whatParameters(p *pkg) map[string]int {
	out := map[string]int{}
	for _, f := range p.files {
		for _, decl := range f.Decls {
			ast.Inspect(decl, func(n ast.Node) bool {
				name, params := "", (*ast.FieldList)(nil)
				switch n := n.(type) {
				case *ast.FuncDecl:
					name, params = n.Name.Name, n.Type.Params
				case *ast.Field: // a method of an interface
					if of, ok := n.Type.(*ast.FuncType); ok && len(n.Names) == 1 {
						name, params = n.Names[0].Name, of.Params
					}
				case *ast.AssignStmt:
					if fn, ok := n.Rhs[0].(*ast.FuncLit); ok {
						if left, ok := n.Lhs[0].(*ast.Ident); ok {
							name, params = left.Name, fn.Type.Params
						}
					}
				}
				if i := parameterPosition(params, "what"); i >= 0 {
					out[name] = i
				}
				return true
			})
		}
	}
	return out
}

// parameterPosition returns the position of a parameter, or -1 if there is none.
func parameterPosition(params *ast.FieldList, name string) int {
	if params == nil {
		return -1
	}
	i := 0
	for _, field := range params.List {
		for _, p := range field.Names {
			if p.Name == name {
				return i
			}
			i++
		}
	}
	return -1
}

func calleeName(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// checkComplete returns an error if the planner or the scaler contains a text that looks like a history entry and
// was not found. So a new way to write history is noticed here.
func checkComplete(s *source, found map[string]string) error {
	known := map[string]bool{}
	for _, dir := range []string{runtimeDir, planDir, rollupDir} {
		for _, prefix := range []string{"Reason", "reason"} {
			all, err := s.constantsWithPrefix(dir, prefix)
			if err != nil && prefix == "Reason" {
				return err
			}
			for _, c := range all {
				known[c.value] = true
			}
		}
	}
	var missed []string
	for _, f := range slices.Concat(s.packages[planDir].files, s.packages[scalerDir].files) {
		ast.Inspect(f, func(n ast.Node) bool {
			e, ok := n.(ast.Expr)
			if !ok {
				return true
			}
			text, ok := literalText(e)
			if ok && camel.MatchString(text) && strings.ToLower(text[1:]) != text[1:] && !known[text] && found[text] == "" {
				missed = append(missed, fmt.Sprintf("%s: %q", s.fset.Position(n.Pos()), text))
			}
			return true
		})
	}
	for _, dir := range slices.Sorted(maps.Keys(s.packages)) {
		if writers[dir] == "" && !strings.HasSuffix(dir, "test") && slices.ContainsFunc(s.packages[dir].files, writesHistory) {
			return fmt.Errorf("%s writes history and is missing in writers: add it", dir)
		}
	}
	if len(missed) > 0 {
		return fmt.Errorf("texts that look like history entries but reach no parameter named what:\n  %s", strings.Join(missed, "\n  "))
	}
	return nil
}

func historyPage(s *source) (string, error) {
	all, err := historyEntries(s)
	if err != nil {
		return "", err
	}
	t := newTable("entry", "written by")
	for _, e := range all {
		t.addRow(asCode(e.name), e.by)
	}
	return generated + "# History entries\n\n`windlass history APP` lists the decisions about an app, each with its reason, its author and its figures. " +
		"[Troubleshooting](../guides/troubleshooting.md#history-entries) says what each entry means.\n\n" + t.String(), nil
}
