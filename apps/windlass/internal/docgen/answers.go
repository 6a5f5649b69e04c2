package main

import (
	"errors"
	"fmt"
	"go/ast"
	"net/http"
	"slices"
	"strings"
)

// proxyDir is the package that answers requests in the place of an instance.
const proxyDir = "apps/gateway/internal/proxy"

// answer is an error that a gateway answers itself.
type answer struct {
	code   string
	status int
}

// statuses are the statuses of answers, by the name of their constant.
var statuses = map[string]int{
	"StatusBadRequest": http.StatusBadRequest, "StatusUnauthorized": http.StatusUnauthorized, "StatusForbidden": http.StatusForbidden,
	"StatusNotFound": http.StatusNotFound, "StatusRequestTimeout": http.StatusRequestTimeout,
	"StatusRequestEntityTooLarge": http.StatusRequestEntityTooLarge, "StatusTooManyRequests": http.StatusTooManyRequests,
	"StatusNotImplemented": http.StatusNotImplemented, "StatusBadGateway": http.StatusBadGateway,
	"StatusServiceUnavailable": http.StatusServiceUnavailable, "StatusGatewayTimeout": http.StatusGatewayTimeout,
	"statusClientGone": 499,
}

// gatewayAnswers returns the errors that gateways answer themselves, sorted by code: the values of type failure.
// Several failures may have one code. Then they must have one status.
func gatewayAnswers(s *source) ([]answer, error) {
	p := s.packages[proxyDir]
	if p == nil {
		return nil, fmt.Errorf("no package %s", proxyDir)
	}
	found := map[string]int{}
	var failed error
	for _, f := range p.files {
		ast.Inspect(f, func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			if name, ok := lit.Type.(*ast.Ident); !ok || name.Name != "failure" {
				return true
			}
			code, status := answerOf(lit)
			if known := found[code]; code == "" || status == 0 || known != 0 && known != status {
				failed = errors.Join(failed, fmt.Errorf("%s: the code of a failure must be a text, and its status one of `statuses` and the same for each code", s.fset.Position(lit.Pos())))
			}
			found[code] = status
			return true
		})
	}
	if failed == nil && len(found) == 0 {
		failed = fmt.Errorf("%s has no failures", proxyDir)
	}
	var out []answer
	for code, status := range found {
		out = append(out, answer{code, status})
	}
	slices.SortFunc(out, func(a, b answer) int { return strings.Compare(a.code, b.code) })
	return out, failed
}

func answerOf(lit *ast.CompositeLit) (code string, status int) {
	for _, e := range lit.Elts {
		pair, ok := e.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		key, ok := pair.Key.(*ast.Ident)
		switch {
		case ok && key.Name == "code":
			code, _ = literalText(pair.Value)
		case ok && key.Name == "status":
			switch value := pair.Value.(type) {
			case *ast.SelectorExpr:
				status = statuses[value.Sel.Name]
			case *ast.Ident:
				status = statuses[value.Name]
			}
		}
	}
	return code, status
}
