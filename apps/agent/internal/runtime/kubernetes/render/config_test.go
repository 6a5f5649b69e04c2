package render

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestPools_AreReadAsTheOperatorWroteThem(t *testing.T) {
	pools, err := ParsePools([]byte(`
pools:
- name: h100
  nodeSelector: {cloud.example.com/pool: h100}
  tolerations: [{key: team, operator: Exists}]
  resourceName: nvidia.com/gpu
  quota: 64
- name: spot
  nodeSelector: {windlass.run/spot: "true"}
`))
	require.NoError(t, err)
	require.Equal(t, map[string]Pool{
		"h100": {
			Name: "h100", NodeSelector: map[string]string{"cloud.example.com/pool": "h100"}, ResourceName: "nvidia.com/gpu", Quota: 64,
			Tolerations: []Toleration{{Key: "team", Operator: corev1.TolerationOpExists}},
		},
		"spot": {Name: "spot", NodeSelector: map[string]string{"windlass.run/spot": "true"}},
	}, pools)
}

func TestParsePools_ErrorsNameTheField(t *testing.T) {
	for says, text := range map[string]string{
		"unknown field":           `pools: [{name: a, selector: {x: y}}]`,
		"pools[0].name":           `pools: [{name: A, nodeSelector: {x: y}}]`,
		"pools[1].name":           `pools: [{name: a, nodeSelector: {x: y}}, {name: a, nodeSelector: {x: z}}]`,
		"pools[0].nodeSelector":   `pools: [{name: a}]`,
		"not a valid label value": `pools: [{name: a, nodeSelector: {x: "y z"}}]`,
		"not a valid label:":      `pools: [{name: a, nodeSelector: {"x y": z}}]`,
		"resourceName":            `pools: [{name: a, nodeSelector: {x: y}, resourceName: gpu}]`,
		"quota":                   `pools: [{name: a, nodeSelector: {x: y}, quota: -1}]`,
		"tolerations[0]":          `pools: [{name: a, nodeSelector: {x: y}, tolerations: [{operator: Equal}]}]`,
		"Exists nor Equal":        `pools: [{name: a, nodeSelector: {x: y}, tolerations: [{key: a, operator: Like}]}]`,
		"NoSchedule":              `pools: [{name: a, nodeSelector: {x: y}, tolerations: [{key: a, effect: Never, operator: Exists}]}]`,
		"tolerationSeconds":       `pools: [{name: a, nodeSelector: {x: y}, tolerations: [{key: a, operator: Exists, tolerationSeconds: 3}]}]`,
	} {
		_, err := ParsePools([]byte(text))
		require.ErrorContains(t, err, says, text)
	}
}

func TestConfig_CheckNamesTheInvalidField(t *testing.T) {
	for says, change := range map[string]func(*Config){
		"region":              func(c *Config) { c.Region = "" },
		"namespace prefix":    func(c *Config) { c.NamespacePrefix = strings.Repeat("x", 25) },
		"beginning of a name": func(c *Config) { c.NamespacePrefix = "-x" },
		"namespace:":          func(c *Config) { c.Namespace = "A" },
		`pools["h100"]`:       func(c *Config) { c.Pools["h100"] = Pool{Name: "other", NodeSelector: map[string]string{"x": "y"}} },
		"nodeSelector":        func(c *Config) { c.Pools["h100"] = Pool{Name: "h100"} },
		"gateway":             func(c *Config) { c.Gateway.CIDRs = []string{"10.0.0.0"} },
		"monitoring[0]":       func(c *Config) { c.Monitoring = []GatewaySelector{{}} },
		"pod labels":          func(c *Config) { c.Gateway.PodLabels = map[string]string{"a b": "c"} },
	} {
		c := config()
		change(&c)
		require.ErrorContains(t, c.Check(), says)
	}
	require.NoError(t, config().Check())
	require.NoError(t, Config{Region: "eu-1", NamespacePrefix: "w-"}.Check())
}
