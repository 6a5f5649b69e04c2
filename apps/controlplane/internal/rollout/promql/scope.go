package promql

import (
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// deploymentLabel is the label that has the deployment's id.
const deploymentLabel = "windlass_deployment"

// restrictQuery makes each selector of the query match only series of the deployments. A tenant wrote
// the query, and Prometheus has the series of all tenants.
func restrictQuery(query string, deployments []string) (string, error) {
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
