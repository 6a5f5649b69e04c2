package render

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

var (
	names = rapid.OneOf(
		rapid.StringMatching(`[a-z]([-a-z0-9]{0,61}[a-z0-9])?`),
		rapid.SampledFrom([]string{"a", "a--b", "main", strings.Repeat("x", 63), "a" + strings.Repeat("-", 61) + "z"}),
	)
	ids = rapid.OneOf(rapid.StringMatching(`[a-z]{3}_[0-9a-f]{32}`), rapid.SampledFrom([]string{"dep_1", "A.b-c_9"}))
	// keys and values generate the keys and values of labels. A name may have a domain.
	keys   = rapid.StringMatching(`([a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?`)
	values = rapid.StringMatching(`([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?`)
	words  = rapid.OneOf(rapid.StringMatching(`[A-Z$() ]{1,12}`), rapid.StringN(1, 20, 60))

	badNames = rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "-", "A", "a-", strings.Repeat("x", 64)}))
	badKeys  = rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{
		"windlass.run/workload", "app.kubernetes.io/name", "pod-template-hash", "kubernetes.io/hostname", "", "a/b/c", "UPPER.example.com/x",
		annotationDefaultContainer,
	}))
)

// assignments returns random assignments that an old, new or broken control plane may send: valid
// ones, and ones with one invalid value.
func assignments(t *rapid.T) runtime.Assignment {
	odd := rapid.SampledFrom([]string{
		"nothing", "nothing", "nothing", "nothing", "id", "app", "port", "number", "image", "command", "env", "product", "resource", "pool", "mount",
		"class", "size", "key", "value", "effect", "priority", "spread", "method", "code", "version", "replicas", "selector", "labels", "annotations",
	}).Draw(t, "odd")
	text := func(label string, good, bad *rapid.Generator[string]) string {
		if label == odd {
			return bad.Draw(t, label)
		}
		return good.Draw(t, label)
	}
	one := func(label string, good, bad []string) string {
		return text(label, rapid.SampledFrom(good), rapid.SampledFrom(bad))
	}
	number := func(label string, low, high, bad int32) int32 {
		if label == odd {
			return bad
		}
		return rapid.Int32Range(low, high).Draw(t, label)
	}
	table := func(label string, v *rapid.Generator[string]) map[string]string {
		if label == odd {
			return rapid.MapOfN(badKeys, rapid.OneOf(v, rapid.String()), 1, 2).Draw(t, label)
		}
		return rapid.MapOfN(keys, v, 0, 2).Draw(t, label)
	}
	yes := func(label string) bool { return rapid.Bool().Draw(t, label) }
	none := []string{""}

	s := &windlassv1.DeploymentSpec{
		Image:   one("image", []string{image, "busybox"}, []string{"", " busybox"}),
		Args:    rapid.SliceOfN(words, 0, 3).Draw(t, "args"),
		Env:     rapid.MapOfN(rapid.OneOf(rapid.StringMatching(`[A-Za-z_][A-Za-z0-9_]{0,20}`), rapid.SampledFrom([]string{"PORT", nvidiaVisible})), rapid.StringN(0, 30, 90), 0, 4).Draw(t, "env"),
		Message: rapid.String().Draw(t, "message"), VersionLabel: rapid.String().Draw(t, "label"),
	}
	if yes("command") {
		s.Command = []string{text("command", words, rapid.Just(""))}
	}
	if odd == "env" {
		s.Env[badKeys.Draw(t, "variable")] = rapid.String().Draw(t, "its value")
	}
	for i, name := range rapid.SliceOfNDistinct(names, 0, 4, rapid.ID).Draw(t, "ports") {
		s.Ports = append(s.Ports, &windlassv1.Port{Name: name, Port: rapid.SampledFrom([]int32{0, 0, 80, 8080, 8081, 9000}).Draw(t, "number") + int32(i)})
	}
	if odd == "number" || odd == "port" {
		s.Ports = append(s.Ports, &windlassv1.Port{Name: text("port", names, badNames), Port: number("number", 1, 65535, 65536)})
	}
	if yes("check") {
		s.HealthCheck = &windlassv1.HealthCheck{Method: one("method", []string{"", "GET", "HEAD"}, []string{"POST"})}
		if yes("codes") {
			s.HealthCheck.ExpectedCodes = []string{one("code", []string{"204", "200-299"}, []string{"", "2xx"})}
		}
	}
	if yes("role") {
		s.Roles = []*windlassv1.RoleSpec{{Name: names.Draw(t, "role name")}}
	}
	if yes("gpu") {
		s.Resources = &windlassv1.Resources{MemoryMib: number("memory", 0, 16777216, -1), CpuMillicores: number("cpu", 0, 1024000, -1), Gpu: &windlassv1.Gpu{
			Count: number("count", 0, 64, -1), MinMemoryMib: number("gpu memory", 0, 100000, -1),
			Product:      one("product", []string{"", "NVIDIA-H100-80GB-HBM3"}, []string{"-bad", strings.Repeat("x", 64)}),
			Pool:         one("pool", []string{"", "h100"}, []string{"mi300", "none"}),
			ResourceName: one("resource", []string{"", "nvidia.com/gpu", "nvidia.com/mig-3g.40gb"}, []string{"amd.com/gpu", "habana.ai/gaudi", "x", "kubernetes.io/x", "/"}),
		}}
	}
	if yes("cache") {
		s.ModelCache = &windlassv1.ModelCache{
			MountPath: one("mount", []string{"/models", "/var/lib/models"}, []string{"/", "/dev", "/dev/shm", "models", "/a/../b"}),
			Claim: &windlassv1.VolumeClaim{
				SizeGib: number("size", 1, 1048576, 0), SingleNode: yes("single"), StorageClass: one("class", []string{"", "fast"}, []string{"Fast"}),
			},
		}
	}
	if yes("kubernetes") {
		s.Kubernetes = &windlassv1.KubernetesOptions{
			NodeSelector: table("selector", values), PodLabels: table("labels", values), PodAnnotations: table("annotations", rapid.String()),
			Tolerations: []*windlassv1.Toleration{{
				Key: one("key", []string{"spot", "nvidia.com/gpu"}, []string{"", "a b"}), Value: text("value", values, rapid.String()),
				Effect: one("effect", []string{"", "NoSchedule", "NoExecute"}, []string{"Never"}),
			}},
			PriorityClass: one("priority", []string{"", "serving"}, []string{"Serving"}), RuntimeClass: one("runtime", none, none),
			ZoneSpread: windlassv1.KubernetesOptions_ZoneSpread(number("spread", 0, 3, 4)),
		}
	}
	pulls := map[string]string{}
	if yes("secret") {
		pull := names.Draw(t, "pull")
		s.Secrets = []*windlassv1.SecretReference{{EnvName: "API_KEY", Secret: "api-key"}, {Secret: pull, ImagePull: true}}
		pulls[pull] = dockerConfig
	}
	id := func(label string) string {
		if odd == "id" && yes("odd "+label) {
			return rapid.String().Draw(t, label)
		}
		return rapid.OneOf(ids, ids, rapid.Just("")).Draw(t, label)
	}
	return runtime.Assignment{
		Deployment: &agentv1.Deployment{
			Id: text("id", ids, badNames), WorkspaceId: id("workspace"), ProjectId: id("project id"), EnvironmentId: id("environment id"),
			AppId: id("app id"), AppName: text("app", names, badNames),
			ProjectName: rapid.OneOf(rapid.Just(""), names).Draw(t, "project"), EnvironmentName: rapid.OneOf(rapid.Just(""), names).Draw(t, "environment"),
			Version: number("version", 0, 2147483647, -1), Replicas: number("replicas", 0, 10000, -1), Spec: s,
		},
		WorkloadKey: id("workload"), WorkloadVersion: int(rapid.Int32Range(0, 2147483647).Draw(t, "workload version")), Generation: rapid.Int64().Draw(t, "generation"),
		TemplateHash: rapid.StringMatching(`[0-9a-f]{0,32}`).Draw(t, "template"),
		Secrets:      map[string]string{"API_KEY": rapid.StringN(0, 30, 90).Draw(t, "secret's value")}, PullSecrets: pulls,
	}
}

// Every assignment is either refused with a message, or gives valid objects with our labels.
// Rendering it again gives the same objects.
func TestRender_AnyAssignmentIsRefusedOrValid(t *testing.T) {
	rendered, refused := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		a := assignments(rt)
		cfg := config()
		given := proto.CloneOf(a.Deployment)
		o, err := Render(cfg, a)
		require.True(rt, proto.Equal(given, a.Deployment), "rendering does not change the assignment")
		if err != nil {
			var rej *runtime.Rejection
			require.ErrorAs(rt, err, &rej)
			require.NotEmpty(rt, rej.Code)
			require.NotEmpty(rt, rej.Message)
			refused++
			return
		}
		rendered++
		checkObjects(rt, cfg, o)
		again, err := Render(cfg, a)
		require.NoError(rt, err)
		require.Equal(rt, sent(rt, o), sent(rt, again))
	})
	t.Logf("%d rendered, %d refused", rendered, refused)
	require.Positive(t, rendered)
	require.Positive(t, refused)
}

// sent returns the object as it is sent to the API server.
func sent(t require.TestingT, o *Objects) string {
	data, err := json.Marshal(documents(o))
	require.NoError(t, err)
	return string(data)
}

type testingT interface {
	require.TestingT
	Helper()
}

func valid(t testingT, what string, errs field.ErrorList) {
	t.Helper()
	require.NoError(t, errs.ToAggregate(), what)
}

func checkObjects(t testingT, cfg Config, o *Objects) {
	type meta struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
	}
	for _, d := range documents(o) {
		m := read[meta](t, d)
		what := m.Kind + " " + m.Name
		checkMeta(t, what, m.ObjectMeta)
		require.True(t, isOurs(&m.ObjectMeta, cfg.Region), what)
		rule := apivalidation.NameIsDNSSubdomain
		switch m.Kind {
		case "Namespace":
			rule = apivalidation.NameIsDNSLabel
		case "Service":
			rule = apivalidation.NameIsDNS1035Label
		}
		require.Empty(t, rule(m.Name, false), what)
		if m.Kind != "Namespace" {
			require.Equal(t, *o.Namespace.Name, m.Namespace, what)
		}
	}
	w := read[appsv1.Deployment](t, o.Workload)
	require.LessOrEqual(t, len(w.Name), maxWorkload)
	pod := w.Spec.Template
	checkMeta(t, "pod", pod.ObjectMeta)
	require.True(t, isOurs(&pod.ObjectMeta, cfg.Region))
	selector, err := metav1.LabelSelectorAsSelector(w.Spec.Selector)
	require.NoError(t, err)
	require.True(t, selector.Matches(labels.Set(pod.Labels)))
	checkPod(t, o, pod.Spec)
	service := read[corev1.Service](t, o.Service)
	require.True(t, labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(pod.Labels)))
	for _, p := range service.Spec.Ports {
		require.Empty(t, validation.IsDNS1123Label(p.Name))
		require.Empty(t, validation.IsValidPortNum(int(p.Port)))
	}
}

func checkMeta(t testingT, what string, m metav1.ObjectMeta) {
	valid(t, what, metavalidation.ValidateLabels(m.Labels, field.NewPath("labels")))
	valid(t, what, apivalidation.ValidateAnnotations(m.Annotations, field.NewPath("annotations")))
}

func checkPod(t testingT, o *Objects, s corev1.PodSpec) {
	valid(t, "node selector", metavalidation.ValidateLabels(s.NodeSelector, field.NewPath("nodeSelector")))
	c := s.Containers[0]
	seen, numbers := map[string]bool{}, map[int32]bool{}
	for _, p := range c.Ports {
		require.Empty(t, validation.IsValidPortName(p.Name))
		require.Empty(t, validation.IsValidPortNum(int(p.ContainerPort)))
		require.False(t, seen[p.Name] || numbers[p.ContainerPort], "two ports have the same name or number")
		seen[p.Name], numbers[p.ContainerPort] = true, true
	}
	if c.ReadinessProbe.GRPC != nil {
		require.False(t, numbers[c.ReadinessProbe.GRPC.Port], "the health container uses a port of the app")
	}
	require.Equal(t, len(s.Containers) == 2, c.ReadinessProbe.GRPC != nil)
	seen = map[string]bool{}
	for _, e := range c.Env {
		require.Empty(t, validation.IsEnvVarName(e.Name))
		require.False(t, seen[e.Name], "%s occurs twice", e.Name)
		seen[e.Name] = true
	}
	secrets := map[string]bool{}
	for _, made := range o.Secrets {
		secrets[*made.Name] = true
		for k := range made.Data {
			require.Empty(t, validation.IsConfigMapKey(k))
		}
	}
	for _, from := range c.EnvFrom {
		require.True(t, secrets[from.SecretRef.Name], "the pod needs a Secret that does not exist: %s", from.SecretRef.Name)
	}
	for _, p := range s.ImagePullSecrets {
		require.True(t, secrets[p.Name], "the pod needs a Secret that does not exist: %s", p.Name)
	}
	for _, tol := range s.Tolerations {
		require.NoError(t, checkToleration(&tol))
	}
	volumes, paths := map[string]bool{}, map[string]bool{}
	for _, v := range s.Volumes {
		volumes[v.Name] = true
	}
	for _, m := range c.VolumeMounts {
		require.True(t, volumes[m.Name])
		require.False(t, paths[m.MountPath], "two volumes at one path")
		paths[m.MountPath] = true
	}
	require.GreaterOrEqual(t, *s.TerminationGracePeriodSeconds, int64(1))
	for _, c := range s.Containers {
		for name, limit := range c.Resources.Limits {
			request := c.Resources.Requests[name]
			require.Zero(t, limit.Cmp(request), name)
		}
		require.Equal(t, []corev1.ResourceName{corev1.ResourceCPU}, slices.Collect(func(yield func(corev1.ResourceName) bool) {
			for _, name := range slices.Sorted(maps.Keys(c.Resources.Requests)) {
				if _, ok := c.Resources.Limits[name]; !ok && !yield(name) {
					return
				}
			}
		}))
	}
}

// kubelet replaces references in commands and arguments by the rules of Kubernetes. Two dollar
// signs become one. A name in $( ) becomes the value of the variable, or stays if there is no such
// variable. All other characters stay.
func kubelet(s string, env map[string]string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		switch s[i+1] {
		case '$':
			b.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(s[i:], ')')
			if end < 0 {
				b.WriteString("$(")
				i++
				continue
			}
			name := s[i+2 : i+end]
			if v, ok := env[name]; ok {
				b.WriteString(v)
			} else {
				b.WriteString("$(" + name + ")")
			}
			i += end
		default:
			b.WriteByte('$')
		}
	}
	return b.String()
}

var promised = regexp.MustCompile(`\$\$\(|\$\(([A-Za-z_][A-Za-z0-9_]*)\)`)

func TestArguments_MeanWhatTheSpecSays(t *testing.T) {
	env := map[string]string{"A": "alpha", "_B9": "$(A) $$(A)", "E": ""}
	spec := func(arg string) string {
		return promised.ReplaceAllStringFunc(arg, func(m string) string {
			if m == "$$(" {
				return "$("
			}
			if v, ok := env[m[2:len(m)-1]]; ok {
				return v
			}
			return m
		})
	}
	check := func(t require.TestingT, s string) {
		require.Equal(t, spec(s), kubelet(escapeArgument(s), env), "args: %q, sent as %q", s, escapeArgument(s))
		require.Equal(t, s, kubelet(escapeWord(s), env), "command: %q, sent as %q", s, escapeWord(s))
	}
	for _, s := range []string{
		"", "$", "$$", "$$$", "$(A)", "$$(A)", "$$$(A)", "$(NO)", "$(A", "$(A$(A)", "$()", "$(A-B)", "$( A)", "${A}", "a$", "$((A))", "$(_B9)$(E)", "50$ or $$",
	} {
		check(t, s)
	}
	rapid.Check(t, func(t *rapid.T) {
		check(t, rapid.OneOf(rapid.StringMatching(`[A_B9E$()\- ]{0,16}`), rapid.String()).Draw(t, "argument"))
	})
}

// isOurs reports whether this region's agent may change an object.
func isOurs(o metav1.Object, region string) bool {
	l := o.GetLabels()
	return l[LabelManagedBy] == ManagedBy && l[LabelRegion] == region
}
