package layout

import (
	"fmt"
	"go/ast"
	"go/types"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	planInput   = "apps/controlplane/internal/planinput"
	memoryStore = "apps/controlplane/internal/store/memory"
)

// A mutation of the API collects the apps to wake, and its method finish wakes them.
const (
	apiWake   = "(*apps/controlplane/internal/api.mutation).wake"
	apiExpect = "(*apps/controlplane/internal/api.mutation).expect"
	apiFinish = "(*apps/controlplane/internal/api.mutation).finish"
)

// loadedControlPlane is the result of controlPlaneCode. Tests share it because it takes long to load.
var loadedControlPlane *Code

// controlPlaneCode returns the code of the control plane.
func controlPlaneCode() (*Code, error) {
	if loadedControlPlane != nil {
		return loadedControlPlane, nil
	}
	root, err := Root(".")
	if err != nil {
		return nil, err
	}
	loadedControlPlane, err = LoadCode(root, "apps/controlplane")
	return loadedControlPlane, err
}

// wakeless are functions that write the input of plans and wake no app. Each has the methods that it calls, and the
// reason why no plan changes.
var wakeless = map[string]struct {
	writes []string
	why    string
}{
	"(*apps/controlplane.Memory).Bootstrap": {[]string{"InsertRegion"}, "no app names a new region"},
	"apps/controlplane.Bootstrap":           {[]string{"InsertRegion"}, "no app names a new region"},
	"(*apps/controlplane/internal/fleet.Service).Maintain": {
		[]string{"DeleteApps", "DeleteTopology", "NoteDomainChecks", "TrimVersions"},
		"deleted apps have no plan, tombstones need no step, the result of a check does not change that a domain is verified, and no row names a deleted version",
	},
	"(apps/controlplane/internal/api.appService).CreateApp": {
		[]string{"InsertApp"}, "an app without a version has no plan",
	},
	"(apps/controlplane/internal/api.appService).UpdateApp": {[]string{"UpdateApp"}, "no plan reads the description"},
	"(apps/controlplane/internal/api.projectService).DeleteProject": {
		[]string{"DeleteFreezesOf"}, "the project has no apps",
	},
	"(apps/controlplane/internal/api.regionService).ApproveGateway": {
		[]string{"UpdateRegion"}, "only other gateways use the address of a gateway",
	},
	"(apps/controlplane/internal/api.regionService).CreateRegion": {[]string{"InsertRegion"}, "no app names a new region"},
	"(apps/controlplane/internal/api.regionService).DeleteRegion": {[]string{"DeleteRegion"}, "no app runs in the region or will run there"},
	"(apps/controlplane/internal/api.regionService).UpdateRegion": {[]string{"UpdateRegion"}, "labels are resolved when a version is made"},
	"(apps/controlplane/internal/api.routeService).AddDomain":     {[]string{"InsertDomain"}, "an app is served under verified domains"},
	"(apps/controlplane/internal/api.workspaceService).DeleteWorkspace": {
		[]string{"DeleteFreezesOf", "DeleteWorkspace", "RevokeGrant"}, "the workspace has no apps",
	},
}

// A step reads rows. If a row changes and its app gets no step, the app stops making progress. So a transaction that
// writes a table which planinput reads must wake the affected apps. The test reads both from the code: the tables from
// the methods of the in-memory store, and the writers from the calls of these methods.
func TestWakes_CoverEveryInputOfPlans(t *testing.T) {
	code, err := controlPlaneCode()
	require.NoError(t, err)
	tables := code.tables()
	inputs := map[string]bool{"app": true} // callers of planinput have already read the app
	for _, name := range code.methodsOf(planInput, "Tx") {
		require.Contains(t, tables, name, "a method of planinput.Tx that the in-memory store does not have")
		maps.Copy(inputs, tables[name].read)
	}
	mutations := map[string][]string{} // tables of inputs, by the method that writes them
	for name, of := range tables {
		for table := range of.written {
			if inputs[table] {
				mutations[name] = append(mutations[name], table)
			}
		}
	}
	found, err := code.wakeless(mutations)
	require.NoError(t, err)
	for _, name := range slices.Sorted(maps.Keys(found)) {
		for _, mutation := range found[name] {
			if !slices.Contains(wakeless[name].writes, mutation) {
				t.Errorf("%s calls %s, which writes %s. Plans read this table: wake the affected apps in the same transaction, or add the function to wakeless with the reason why no plan changes.",
					name, mutation, strings.Join(mutations[mutation], ", "))
			}
		}
	}
	for name, of := range wakeless {
		require.Equal(t, of.writes, found[name], "%s: wakeless must list exactly the methods that it calls without a wake-up", name)
	}
}

type tableUse struct{ read, written map[string]bool }

// tables returns the tables that each method of the in-memory store's transaction reads and writes.
func (c *Code) tables() map[string]tableUse {
	uses := map[string]tableUse{}
	for fn, b := range c.bodies {
		if strings.HasPrefix(fullName(fn), "(*"+memoryStore+".tx).") {
			u := tableUse{read: map[string]bool{}, written: map[string]bool{}}
			c.collectTables(fn, b, u, map[*types.Func]bool{})
			uses[fn.Name()] = u
		}
	}
	return uses
}

func (c *Code) collectTables(fn *types.Func, b body, u tableUse, seen map[*types.Func]bool) {
	if seen[fn] {
		return
	}
	seen[fn] = true
	ast.Inspect(b.block, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if s, ok := call.Fun.(*ast.SelectorExpr); ok {
			if table := tableOf(s.X); table != "" {
				switch s.Sel.Name {
				case "put", "insert", "delete":
					u.written[table] = true
				default:
					u.read[table] = true
				}
			}
		}
		if id, ok := call.Fun.(*ast.Ident); ok && id.Name == "forgetRows" {
			u.written[tableOf(call.Args[0])] = true
		}
		if callee := called(call, b); callee != nil && callee.Pkg() == fn.Pkg() {
			if of, ok := c.bodies[callee]; ok {
				c.collectTables(callee, of, u, seen)
			}
		}
		return true
	})
}

// tableOf returns "pin" for pinTable.overlayIn(t).
func tableOf(e ast.Expr) string {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return ""
	}
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != "overlayIn" {
		return ""
	}
	id, ok := s.X.(*ast.Ident)
	if !ok {
		return ""
	}
	table, _ := strings.CutSuffix(id.Name, "Table")
	return table
}

// called returns the function or method that call calls, or nil for a function value.
func called(call *ast.CallExpr, b body) *types.Func {
	fn, ok := b.info.Uses[calledName(call)].(*types.Func)
	if !ok {
		return nil
	}
	return fn.Origin()
}

// calledName returns the name of the called function, or nil if it has no name.
func calledName(call *ast.CallExpr) *ast.Ident {
	switch f := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		return f
	case *ast.SelectorExpr:
		return f.Sel
	}
	return nil
}

// methodsOf returns the names of an interface's methods.
func (c *Code) methodsOf(path, name string) (names []string) {
	for fn := range c.bodies {
		if fn.Pkg().Path() != Prefix+path {
			continue
		}
		of := fn.Pkg().Scope().Lookup(name).Type().Underlying().(*types.Interface)
		for method := range of.Methods() {
			names = append(names, method.Name())
		}
		return names
	}
	return nil
}

// ofTx reports whether a method belongs to the interface of a transaction, which each edge declares.
func ofTx(fn *types.Func) bool {
	recv := fn.Signature().Recv()
	return recv != nil && types.IsInterface(recv.Type()) && strings.Contains(fn.FullName(), "Tx)")
}

// wakeless returns functions that reach mutations but no wake-up, each with the mutations that it reaches. It returns
// only functions outside the store that no other function calls.
func (c *Code) wakeless(mutations map[string][]string) (map[string][]string, error) {
	found, known := map[string][]string{}, map[string]bool{}
	callees, callers := map[*types.Func][]*types.Func{}, map[*types.Func][]*types.Func{}
	wakes := map[*types.Func]bool{}
	writes := map[*types.Func][]string{}
	for fn, b := range c.bodies {
		name := fullName(fn)
		if strings.Contains(name, "apps/controlplane/internal/store") || !strings.Contains(name, "apps/controlplane") {
			continue
		}
		calls := map[*ast.Ident]bool{}
		ast.Inspect(b.block, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				calls[calledName(call)] = true
			}
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			callee, ok := b.info.Uses[id].(*types.Func)
			// A method value of the package itself counts as a call, too.
			if !ok || !calls[id] && callee.Pkg() != fn.Pkg() {
				return true
			}
			callee = callee.Origin()
			switch {
			case ofTx(callee) && (callee.Name() == "Wake" || callee.Name() == "WakeAt"):
				wakes[fn] = true
			case ofTx(callee) && len(mutations[callee.Name()]) > 0:
				writes[fn] = append(writes[fn], callee.Name())
			default:
				callees[fn] = append(callees[fn], callee)
				callers[callee] = append(callers[callee], fn)
			}
			return true
		})
		known[name] = true
		switch name {
		case apiWake, apiExpect:
			wakes[fn] = true
		case apiFinish:
			wakes[fn] = false // every mutation reaches it
		}
	}
	for _, name := range []string{apiWake, apiExpect, apiFinish} {
		if !known[name] {
			return nil, fmt.Errorf("there is no %s: it was renamed, or mutations wake apps in another way", name)
		}
	}
	reaches := func(fn *types.Func) bool {
		seen := map[*types.Func]bool{}
		var visit func(*types.Func) bool
		visit = func(fn *types.Func) bool {
			if wakes[fn] {
				return true
			}
			if seen[fn] {
				return false
			}
			seen[fn] = true
			return slices.ContainsFunc(callees[fn], visit)
		}
		return visit(fn)
	}
	// entries returns the functions that lead to fn, that no other function calls, and that wake no app.
	var entries func(fn *types.Func, seen map[*types.Func]bool) []*types.Func
	entries = func(fn *types.Func, seen map[*types.Func]bool) (found []*types.Func) {
		if seen[fn] || reaches(fn) {
			return nil
		}
		seen[fn] = true
		if len(callers[fn]) == 0 {
			return []*types.Func{fn}
		}
		for _, by := range callers[fn] {
			found = append(found, entries(by, seen)...)
		}
		return found
	}
	for fn, names := range writes {
		for _, entry := range entries(fn, map[*types.Func]bool{}) {
			name := fullName(entry)
			found[name] = append(found[name], names...)
			slices.Sort(found[name])
			found[name] = slices.Compact(found[name])
		}
	}
	return found, nil
}
