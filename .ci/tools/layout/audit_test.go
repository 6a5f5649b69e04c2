package layout

import (
	"go/ast"
	"go/types"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	apiMutate = "apps/controlplane/internal/api.mutate"
	apiAudit  = "(*apps/controlplane/internal/api.mutation).auditIn"
)

// unaudited are RPCs that call mutate and write no audit row, with the reason.
var unaudited = map[string]string{}

// An operator must find each change and its caller in the audit. So each RPC that calls mutate writes a row with audit,
// auditFor or auditIn.
func TestAudit_HasARowOfEveryMutation(t *testing.T) {
	code, err := controlPlaneCode()
	require.NoError(t, err)
	callees, mutations, known := map[*types.Func][]*types.Func{}, map[*types.Func]bool{}, map[string]bool{}
	for fn, b := range code.bodies {
		known[fullName(fn)] = true
		ast.Inspect(b.block, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			if callee, ok := b.info.Uses[id].(*types.Func); ok {
				callee = callee.Origin()
				callees[fn] = append(callees[fn], callee)
				mutations[fn] = mutations[fn] || fullName(callee) == apiMutate
			}
			return true
		})
	}
	for _, name := range []string{apiMutate, apiAudit} {
		require.True(t, known[name], "there is no %s: it was renamed", name)
	}
	var reaches func(fn *types.Func, seen map[*types.Func]bool) bool
	reaches = func(fn *types.Func, seen map[*types.Func]bool) bool {
		if fullName(fn) == apiAudit {
			return true
		}
		if seen[fn] || fullName(fn) == apiMutate { // mutate calls the functions that its callers pass
			return false
		}
		seen[fn] = true
		return slices.ContainsFunc(callees[fn], func(callee *types.Func) bool { return reaches(callee, seen) })
	}
	audited := 0
	for fn, mutates := range mutations {
		if !mutates {
			continue
		}
		name := fullName(fn)
		_, spared := unaudited[name]
		switch writes := reaches(fn, map[*types.Func]bool{}); {
		case writes && spared:
			t.Errorf("%s writes an audit row: remove it from unaudited", name)
		case writes:
			audited++
		case !spared:
			t.Errorf("%s is a mutation and writes no audit row: call c.audit with the API's message before and after the change (docs/contributing)", name)
		}
	}
	require.Greater(t, audited, 20)
}
