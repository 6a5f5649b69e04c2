package promql

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// deploymentLabel is the label that has the deployment's id.
const deploymentLabel = "windlass_deployment"

// within makes each selector of the query match only series of the deployments. A tenant wrote
// the query, and Prometheus has the series of all tenants.
func within(query string, deployments []string) (string, error) {
	if len(deployments) == 0 {
		return "", errors.New("no deployment to restrict the query to")
	}
	expr, err := parser.ParseExpr(query)
	if err != nil {
		return "", err
	}
	var quoted []string
	for _, d := range deployments {
		quoted = append(quoted, regexp.QuoteMeta(d))
	}
	slices.Sort(quoted)
	only, err := labels.NewMatcher(labels.MatchRegexp, deploymentLabel, strings.Join(slices.Compact(quoted), "|"))
	if err != nil {
		return "", err
	}
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			s.LabelMatchers = append(s.LabelMatchers, only)
		}
		return nil
	})
	return expr.String(), nil
}

// shares bounds how many slots one workspace holds, so that its slow queries do not delay the queries of
// other workspaces.
type shares struct {
	each int

	mu    sync.Mutex
	taken map[string]*share
}

type share struct {
	slots chan struct{}
	users int
}

// take waits for a slot of the workspace; give gives it back.
func (s *shares) take(ctx context.Context, workspace string) (give func(), err error) {
	s.mu.Lock()
	if s.taken == nil {
		s.taken = map[string]*share{}
	}
	one := s.taken[workspace]
	if one == nil {
		one = &share{slots: make(chan struct{}, s.each)}
		s.taken[workspace] = one
	}
	one.users++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(s.taken, workspace)
		}
	}
	select {
	case one.slots <- struct{}{}:
		return func() { <-one.slots; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
