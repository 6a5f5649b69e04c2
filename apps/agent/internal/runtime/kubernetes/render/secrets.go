package render

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
)

// contentHash is 40 bits of what Secrets hold, hashed with Config.NameKey: it is
// read by people who may not read Secrets and could otherwise confirm a guess.
// Fewer bits would one day give two contents one name.
const contentHash = 8

// maxVariables is Kubernetes' limit for one Secret.
const maxVariables = corev1.MaxSecretSize

// variables are the deployment's variables and secrets, nil if it has none. The
// Secret cannot change and has the name of its contents: a pod that runs with it runs
// with these values until another pod takes its place.
func (r *rendering) variables() (*coreac.SecretApplyConfiguration, error) {
	values := map[string]string{}
	for name, v := range r.spec.GetEnv() {
		if err := checkVariable(fmt.Sprintf("spec.env[%q]", name), name, v); err != nil {
			return nil, err
		}
		values[name] = v
	}
	for i, ref := range r.spec.GetSecrets() {
		if ref.GetImagePull() {
			continue
		}
		v, ok := r.a.Secrets[ref.GetEnvName()]
		if !ok {
			return nil, unavailable(ref.GetSecret())
		}
		if err := checkVariable(fmt.Sprintf("spec.secrets[%d].env_name", i), ref.GetEnvName(), v); err != nil {
			return nil, err
		}
		values[ref.GetEnvName()] = v
	}
	// Which devices an instance sees is the device plugin's to say, and a variable of
	// the pod would be stronger.
	delete(values, nvidiaVisible)
	if len(values) == 0 {
		return nil, nil //nolint:nilnil // there is none, which is fine
	}
	data := map[string][]byte{}
	size := 0
	for name, v := range values {
		data[name] = []byte(v)
		size += len(name) + len(v)
	}
	if size > maxVariables {
		return nil, invalid("spec.env, spec.secrets: variables and secrets take %d bytes together, of which Kubernetes keeps %d: put large values into files", size, maxVariables)
	}
	return coreac.Secret(variablesName(r.name, r.contents(values)), r.namespace).
		WithLabels(r.objectLabels()).WithType(corev1.SecretTypeOpaque).WithImmutable(true).WithData(data), nil
}

func checkVariable(at, name, value string) error {
	switch {
	// Names of variables are keys of the Secret.
	case len(validation.IsConfigMapKey(name)) > 0, len(validation.IsEnvVarName(name)) > 0:
		return invalid("%s: %q is no variable's name: use up to 253 letters, digits and underscores", at, name)
	case strings.ContainsRune(value, 0):
		return invalid("%s: the value of %s holds a zero byte, which no program can be given", at, name)
	}
	return nil
}

func unavailable(secret string) error {
	return &runtime.Rejection{
		Code: runtime.ReasonSecretUnavailable, Retryable: true,
		Message: fmt.Sprintf("secret %q has no value", secret),
	}
}

// contents is a keyed hash of values by name, salted with where they are used.
func (r *rendering) contents(values map[string]string) string {
	var b strings.Builder
	_, _ = fmt.Fprintf(&b, "%s\x00%s", r.d.GetEnvironmentId(), r.d.GetAppId())
	for _, k := range slices.Sorted(maps.Keys(values)) {
		_, _ = fmt.Fprintf(&b, "\x00%s\x00%d\x00%s", k, len(values[k]), values[k])
	}
	if r.cfg.NameKey == nil {
		return hash(b.String(), contentHash)
	}
	mac := hmac.New(sha256.New, r.cfg.NameKey)
	mac.Write([]byte(b.String()))
	return lower.EncodeToString(mac.Sum(nil))[:contentHash]
}

// Variables that tell an instance what the assignment says of it now. They are
// values of a Secret that changes, because the assignment does while the template
// stays: an instance has them as they were when it started.
const (
	envDeployment = "WINDLASS_DEPLOYMENT_ID"
	envVersion    = "WINDLASS_VERSION"
	envReplicas   = "WINDLASS_REPLICAS"
	envGroup      = "WINDLASS_GROUP"
)

// identity is a Secret, though it holds none, because the agent then needs no right
// to one more kind of object.
func (r *rendering) identity() *coreac.SecretApplyConfiguration {
	data := map[string][]byte{
		envDeployment: []byte(r.d.GetId()),
		envVersion:    []byte(strconv.Itoa(int(r.d.GetVersion()))),
		envReplicas:   []byte(strconv.Itoa(int(r.d.GetReplicas()))),
	}
	if r.d.GetReplicas() == 1 {
		// Pods of a Deployment have no order, so that none can be told which of several
		// it is. The only one is the first.
		data[envGroup] = []byte("0")
	}
	return coreac.Secret(identityName(r.name), r.namespace).
		WithLabels(r.objectLabels()).WithType(corev1.SecretTypeOpaque).WithData(data)
}

// pullSecrets are the Docker configurations to pull the image with, by name.
func (r *rendering) pullSecrets() ([]*coreac.SecretApplyConfiguration, error) {
	names := map[string]bool{}
	for _, ref := range r.spec.GetSecrets() {
		if ref.GetImagePull() {
			names[ref.GetSecret()] = true
		}
	}
	var out []*coreac.SecretApplyConfiguration
	for _, name := range slices.Sorted(maps.Keys(names)) {
		value, ok := r.a.PullSecrets[name]
		if !ok {
			return nil, unavailable(name)
		}
		if err := checkDockerConfig(name, value); err != nil {
			return nil, err
		}
		out = append(out, coreac.Secret(pullName(r.name, name), r.namespace).
			WithLabels(r.objectLabels()).WithType(corev1.SecretTypeDockerConfigJson).
			WithData(map[string][]byte{corev1.DockerConfigJsonKey: []byte(value)}))
	}
	return out, nil
}

// checkDockerConfig fails for what no registry would take. Its errors quote nothing
// of the value.
func checkDockerConfig(name, value string) error {
	bad := func(format string, args ...any) error {
		return invalid("secret %q: "+format, append([]any{name}, args...)...)
	}
	if len(value) > corev1.MaxSecretSize {
		return bad("it takes %d bytes, of which Kubernetes keeps %d", len(value), corev1.MaxSecretSize)
	}
	var config struct {
		Auths map[string]struct {
			Auth          string `json:"auth"`
			Username      string `json:"username"`
			Password      string `json:"password"`
			IdentityToken string `json:"identitytoken"`
			RegistryToken string `json:"registrytoken"`
		} `json:"auths"`
	}
	if err := json.Unmarshal([]byte(value), &config); err != nil {
		return bad(`it is no Docker configuration: it is not JSON of the form {"auths": {"registry.example.com": {"auth": "..."}}}`)
	}
	if len(config.Auths) == 0 {
		return bad(`it is no Docker configuration: "auths" names no registry. With a credential helper, config.json holds no password: make one with "docker login" where there is none`)
	}
	for _, registry := range slices.Sorted(maps.Keys(config.Auths)) {
		a := config.Auths[registry]
		if a.Auth == "" && (a.Username == "" || a.Password == "") && a.IdentityToken == "" && a.RegistryToken == "" {
			return bad("registry %s has neither auth nor username and password", registry)
		}
	}
	return nil
}

// secretHashes are of what pods are made with, and of that and the pull secrets.
func (r *rendering) secretHashes(variables *coreac.SecretApplyConfiguration, pulls []*coreac.SecretApplyConfiguration) (pods, all string) {
	values := map[string]string{}
	if variables != nil {
		for k, v := range variables.Data {
			values["env/"+k] = string(v)
		}
	}
	pods = r.contents(values)
	for _, p := range pulls {
		values["pull/"+*p.Name] = string(p.Data[corev1.DockerConfigJsonKey])
	}
	return pods, r.contents(values)
}
