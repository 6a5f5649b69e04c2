package render

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/windlass-run/windlass/pkg/ident"
)

// DefaultNamespacePrefix is the default prefix of the names of namespaces that the agent makes.
const DefaultNamespacePrefix = "windlass-"

// maxPrefix is the maximum length of a prefix. It leaves room for the names of the project and the
// environment.
const maxPrefix = 24

// Config has everything that rendering depends on, except the assignment. Callers must call Check
// once.
type Config struct {
	// Region is the region's name, which is a label of all objects.
	Region string
	// NamespacePrefix is the prefix of the names of namespaces. Empty: DefaultNamespacePrefix.
	NamespacePrefix string
	// Namespace is the namespace that the assignment's environment already has. Its name may
	// contain an earlier name of the project. Empty: a name is made from the present names.
	Namespace string
	// Pools are the region's pools by name.
	Pools map[string]Pool
	// Topology has the labels of nodes by the region's words for them, such as "rack".
	Topology map[string]string
	// Policy is what pods may request. The zero value allows nothing beyond the "restricted"
	// standard.
	Policy Policy
	// Gateway selects the callers that may connect to instances. The zero value selects none.
	Gateway GatewaySelector
	// Monitoring selects other callers that may connect to instances.
	Monitoring []GatewaySelector
	// HealthImage is an image with the agent's program. It makes health checks that a kubelet
	// cannot make. Empty: such checks are refused.
	HealthImage string
	// LoaderImage is an image with the agent's program. It fetches files of models in the pods of servers of models. Empty:
	// pods have no loader. ModelAllow has networks from which it may fetch, besides public addresses.
	LoaderImage string
	ModelAllow  []string
	// ModelsMount is where the volume with files of models is mounted. Empty: DefaultModelsMount.
	ModelsMount string
	// NameKey is the key for the hashes of secret values in names and annotations. Without a key, a
	// reader could compare the hashes with guesses. When the key changes, running pods keep their
	// names and annotations. Nil: no key.
	NameKey []byte
	// AgentVersion is the value of the annotation AnnotationCreatedBy of namespaces.
	AgentVersion string
}

// GatewaySelector selects callers that may open connections. It selects pods by their labels and by
// the labels of their namespaces. Without labels, it matches all pods or all namespaces. It selects
// other callers by address. The zero value matches no caller.
type GatewaySelector struct {
	NamespaceLabels map[string]string
	PodLabels       map[string]string
	// CIDRs are addresses of callers that are not pods, such as "10.0.0.0/8".
	CIDRs []string
}

// IsZero reports whether the selector matches no caller.
func (s GatewaySelector) IsZero() bool {
	return len(s.NamespaceLabels) == 0 && len(s.PodLabels) == 0 && len(s.CIDRs) == 0
}

// Toleration is Kubernetes' type.
type Toleration = corev1.Toleration

// Pool is a part of the region's GPUs that deployments request by name.
type Pool struct {
	Name string `json:"name"`
	// NodeSelector has the labels of the pool's nodes.
	NodeSelector map[string]string `json:"nodeSelector"`
	// Tolerations are the tolerations of instances in the pool, in addition to the toleration for
	// GPUs.
	Tolerations []Toleration `json:"tolerations"`
	// ResourceName is the resource of its GPUs. Empty: the deployment's, or "nvidia.com/gpu".
	ResourceName string `json:"resourceName"`
	// Quota is how many of its GPUs Windlass may use. 0: all of them.
	Quota int `json:"quota"`
}

// ParsePools reads the pools of a region from the YAML of its operator:
//
//	pools:
//	- name: h100
//	  nodeSelector: {cloud.example.com/nodepool: h100}
//	  tolerations: [{key: team, operator: Exists}]
//	  resourceName: nvidia.com/gpu
//	  quota: 64
func ParsePools(data []byte) (map[string]Pool, error) {
	var file struct {
		Pools []Pool `json:"pools"`
	}
	if err := yaml.UnmarshalStrict(data, &file); err != nil {
		return nil, fmt.Errorf("read pools: %w", err)
	}
	pools := map[string]Pool{}
	for i, p := range file.Pools {
		if _, ok := pools[p.Name]; ok {
			return nil, fmt.Errorf("pools[%d].name: %q occurs twice", i, p.Name)
		}
		if err := p.checkAt(fmt.Sprintf("pools[%d]", i)); err != nil {
			return nil, err
		}
		pools[p.Name] = p
	}
	return pools, nil
}

func (p Pool) checkAt(at string) error {
	if !ident.ValidName(p.Name) {
		return fmt.Errorf("%s.name: %q is not a valid name: use lower case letters, digits and dashes, beginning with a letter", at, p.Name)
	}
	if len(p.NodeSelector) == 0 {
		return fmt.Errorf("%s.nodeSelector: it is empty: name a label that only the pool's nodes have", at)
	}
	if err := checkLabels(at+".nodeSelector", p.NodeSelector); err != nil {
		return err
	}
	if p.ResourceName != "" {
		if err := checkResourceName(p.ResourceName); err != nil {
			return fmt.Errorf("%s.resourceName: %w", at, err)
		}
	}
	if p.Quota < 0 {
		return fmt.Errorf("%s.quota: %d is negative: use 0 for all", at, p.Quota)
	}
	for i := range p.Tolerations {
		if err := checkToleration(&p.Tolerations[i]); err != nil {
			return fmt.Errorf("%s.tolerations[%d]: %w", at, i, err)
		}
	}
	return nil
}

// Check returns an error for a value that Kubernetes would refuse.
func (c Config) Check() error {
	if c.Region == "" || len(validation.IsValidLabelValue(c.Region)) > 0 {
		return fmt.Errorf("region: %q is not a valid label value", c.Region)
	}
	prefix := c.NamespacePrefix
	if prefix == "" {
		prefix = DefaultNamespacePrefix
	}
	if len(prefix) > maxPrefix || len(validation.IsDNS1123Label(prefix+"x")) > 0 {
		return fmt.Errorf("namespace prefix: %q is not a valid beginning of a name: use up to %d lower case letters, digits and dashes", prefix, maxPrefix)
	}
	if c.Namespace != "" && len(validation.IsDNS1123Label(c.Namespace)) > 0 {
		return fmt.Errorf("namespace: %q is not a valid namespace name", c.Namespace)
	}
	if strings.TrimSpace(c.HealthImage) != c.HealthImage {
		return fmt.Errorf("health image: %q begins or ends with a space", c.HealthImage)
	}
	if strings.TrimSpace(c.LoaderImage) != c.LoaderImage {
		return fmt.Errorf("loader image: %q begins or ends with a space", c.LoaderImage)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Pools)) {
		if p := c.Pools[name]; p.Name != name {
			return fmt.Errorf("pools[%q]: its name is %q", name, p.Name)
		}
		if err := c.Pools[name].checkAt(fmt.Sprintf("pools[%q]", name)); err != nil {
			return err
		}
	}
	for _, word := range slices.Sorted(maps.Keys(c.Topology)) {
		if !ident.ValidName(word) {
			return fmt.Errorf("topology: %q is not a valid word: use lower-case letters, digits and dashes, and begin with a letter", word)
		}
		if label := c.Topology[word]; len(validation.IsQualifiedName(label)) > 0 {
			return fmt.Errorf("topology: %s=%q: it is not a valid label name", word, label)
		}
	}
	if err := c.Gateway.checkAt("gateway"); err != nil {
		return err
	}
	for i, m := range c.Monitoring {
		if m.IsZero() {
			return fmt.Errorf("monitoring[%d]: it selects no caller", i)
		}
		if err := m.checkAt(fmt.Sprintf("monitoring[%d]", i)); err != nil {
			return err
		}
	}
	return nil
}

func (s GatewaySelector) checkAt(at string) error {
	if err := checkLabels(at+".namespace labels", s.NamespaceLabels); err != nil {
		return err
	}
	if err := checkLabels(at+".pod labels", s.PodLabels); err != nil {
		return err
	}
	for _, c := range s.CIDRs {
		if _, err := netip.ParsePrefix(c); err != nil {
			return fmt.Errorf("%s: %q is not a CIDR such as 10.0.0.0/8", at, c)
		}
	}
	return nil
}

func checkLabels(at string, all map[string]string) error {
	for _, k := range slices.Sorted(maps.Keys(all)) {
		if bad := validation.IsQualifiedName(k); len(bad) > 0 {
			return fmt.Errorf("%s: %q is not a valid label: %s", at, k, strings.Join(bad, "; "))
		}
		if bad := validation.IsValidLabelValue(all[k]); len(bad) > 0 {
			return fmt.Errorf("%s[%q]: %q is not a valid label value: %s", at, k, all[k], strings.Join(bad, "; "))
		}
	}
	return nil
}

// checkResourceName returns an error unless name is the name of an extended resource.
func checkResourceName(name string) error {
	domain, kind, ok := strings.Cut(name, "/")
	if !ok || kind == "" || len(validation.IsQualifiedName(name)) > 0 {
		return fmt.Errorf("%q is not the name of a resource such as nvidia.com/gpu", name)
	}
	if domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") || strings.HasPrefix(name, "requests.") {
		return fmt.Errorf("%q is a resource of Kubernetes itself, not of GPUs", name)
	}
	// A ResourceQuota has it as requests.<name>, which must be a valid name, too.
	if len(validation.IsQualifiedName("requests."+name)) > 0 {
		return fmt.Errorf("%q is too long", name)
	}
	return nil
}

func checkToleration(t *Toleration) error {
	switch t.Operator {
	case "", corev1.TolerationOpEqual:
		if t.Key == "" {
			return fmt.Errorf("key is empty: set it, or set operator to Exists to tolerate every taint")
		}
		if bad := validation.IsValidLabelValue(t.Value); len(bad) > 0 {
			return fmt.Errorf("value %q: %s", t.Value, strings.Join(bad, "; "))
		}
	case corev1.TolerationOpExists:
		if t.Value != "" {
			return fmt.Errorf("value %q has no meaning with operator Exists: leave one of them out", t.Value)
		}
	default:
		return fmt.Errorf("operator %q is neither Exists nor Equal", t.Operator)
	}
	if t.Key != "" && len(validation.IsQualifiedName(t.Key)) > 0 {
		return fmt.Errorf("key %q is not a valid taint key", t.Key)
	}
	switch t.Effect {
	case "", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
	default:
		return fmt.Errorf("effect %q is not one of NoSchedule, PreferNoSchedule, NoExecute", t.Effect)
	}
	if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
		return fmt.Errorf("tolerationSeconds needs effect NoExecute")
	}
	return nil
}
