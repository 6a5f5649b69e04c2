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

// contentHash is the length of hashes of the contents of Secrets: 40 bits. The hashes use
// Config.NameKey, because people who may not read Secrets can read the hash, and could otherwise
// confirm a guess. With fewer bits, two contents could get the same name.
const contentHash = 8

// maxVariables is Kubernetes' limit for one Secret.
const maxVariables = corev1.MaxSecretSize

// variablesSecret returns a Secret with the deployment's variables and secrets, or nil if it has none.
// The Secret is immutable, and its name has a hash of its contents. So a pod keeps its values until
// another pod replaces it.
func (r *rendering) variablesSecret() (*coreac.SecretApplyConfiguration, error) {
	values := map[string]string{}
	for name, v := range r.spec.GetEnv() {
		if err := checkVariable(fmt.Sprintf("env[%q]", name), name, v); err != nil {
			return nil, err
		}
		values[name] = v
	}
	for name, v := range r.role.env {
		if err := checkVariable(fmt.Sprintf("%senv[%q]", r.role.at, name), name, v); err != nil {
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
			return nil, unavailableError(ref.GetSecret())
		}
		if err := checkVariable(fmt.Sprintf("secrets[%d].envName", i), ref.GetEnvName(), v); err != nil {
			return nil, err
		}
		values[ref.GetEnvName()] = v
	}
	// The device plugin decides which devices an instance sees. A variable of the pod would
	// override this decision.
	delete(values, nvidiaVisible)
	if len(values) == 0 {
		return nil, nil //nolint:nilnil // there are no variables, which is no error
	}
	data := map[string][]byte{}
	size := 0
	for name, v := range values {
		data[name] = []byte(v)
		size += len(name) + len(v)
	}
	if size > maxVariables {
		return nil, invalidError("env, secrets: variables and secrets take %d bytes together, and Kubernetes allows %d: put large values into files", size, maxVariables)
	}
	return coreac.Secret(variablesName(r.name, r.contentsHash(values)), r.namespace).
		WithLabels(r.objectLabels()).WithType(corev1.SecretTypeOpaque).WithImmutable(true).WithData(data), nil
}

func checkVariable(at, name, value string) error {
	switch {
	// Names of variables are keys of the Secret.
	case len(validation.IsConfigMapKey(name)) > 0, len(validation.IsEnvVarName(name)) > 0:
		return invalidError("%s: %q is not a valid variable name: use up to 253 letters, digits and underscores", at, name)
	case strings.ContainsRune(value, 0):
		return invalidError("%s: the value of %s contains a zero byte, which a variable cannot", at, name)
	}
	return nil
}

func unavailableError(secret string) error {
	return &runtime.Rejection{
		Code: runtime.ReasonSecretUnavailable, Retryable: true,
		Message: fmt.Sprintf("secret %q has no value", secret),
	}
}

// contentsHash returns a keyed hash of values and their names, with the ids of environment and app as
// salt.
func (r *rendering) contentsHash(values map[string]string) string {
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

// These variables have facts of the assignment that may change while the template stays. They are
// in a Secret that changes with the assignment. An instance gets the values at its start.
const (
	envDeployment = "WINDLASS_DEPLOYMENT_ID"
	envVersion    = "WINDLASS_VERSION"
	envReplicas   = "WINDLASS_REPLICAS"
	envGroup      = "WINDLASS_GROUP"
)

// identitySecret returns the Secret with these variables. The variables are not secret. They are in a
// Secret, because for a ConfigMap the agent would need permissions for one more kind of object.
func (r *rendering) identitySecret() *coreac.SecretApplyConfiguration {
	data := map[string][]byte{
		envDeployment: []byte(r.d.GetId()),
		envVersion:    []byte(strconv.Itoa(int(r.d.GetVersion()))),
		envReplicas:   []byte(strconv.Itoa(int(r.d.GetReplicas()))),
	}
	if u := r.a.Unit; u != nil {
		data[envReplicas], data[envGroup] = []byte(strconv.Itoa(u.Replicas)), []byte(strconv.Itoa(u.Group))
	} else if r.d.GetReplicas() == 1 {
		// Pods of a Deployment have no order. So a pod cannot know its group, unless there is only
		// one.
		data[envGroup] = []byte("0")
	}
	return coreac.Secret(identityName(r.name), r.namespace).
		WithLabels(r.objectLabels()).WithType(corev1.SecretTypeOpaque).WithData(data)
}

// Peers returns the Secret with the peers file of a group. a is the assignment of one of the
// group's instances.
func Peers(cfg Config, a runtime.Assignment, content []byte) (*coreac.SecretApplyConfiguration, error) {
	r, err := prepareRendering(cfg, a)
	if err != nil {
		return nil, err
	}
	l := r.familyLabels()
	l[LabelGroup] = strconv.Itoa(a.Unit.Group)
	return coreac.Secret(PeersName(a, a.Unit.Group), r.namespace).
		WithLabels(l).WithType(corev1.SecretTypeOpaque).WithData(map[string][]byte{peersFile: content}), nil
}

// pullSecrets returns the Secrets with the Docker configurations for pulling the image, by name.
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
			return nil, unavailableError(name)
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

// checkDockerConfig returns an error for a value that is not a Docker configuration with
// credentials. Its errors do not quote the value.
func checkDockerConfig(name, value string) error {
	bad := func(format string, args ...any) error {
		return invalidError("secret %q: "+format, append([]any{name}, args...)...)
	}
	if len(value) > corev1.MaxSecretSize {
		return bad("it takes %d bytes, and Kubernetes allows %d", len(value), corev1.MaxSecretSize)
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
		return bad(`it is not a Docker configuration: it is not JSON of the form {"auths": {"registry.example.com": {"auth": "..."}}}`)
	}
	if len(config.Auths) == 0 {
		return bad(`it is not a Docker configuration: "auths" names no registry. With a credential helper, config.json has no password: run "docker login" on a machine without a helper`)
	}
	for _, registry := range slices.Sorted(maps.Keys(config.Auths)) {
		a := config.Auths[registry]
		if a.Auth == "" && (a.Username == "" || a.Password == "") && a.IdentityToken == "" && a.RegistryToken == "" {
			return bad("registry %s has neither auth nor username and password", registry)
		}
	}
	return nil
}

// secretHashes returns two hashes: pods covers the values that pods get, and all also covers the
// pull secrets.
func (r *rendering) secretHashes(variables *coreac.SecretApplyConfiguration, pulls []*coreac.SecretApplyConfiguration) (pods, all string) {
	values := map[string]string{}
	if variables != nil {
		for k, v := range variables.Data {
			values["env/"+k] = string(v)
		}
	}
	pods = r.contentsHash(values)
	for _, p := range pulls {
		values["pull/"+*p.Name] = string(p.Data[corev1.DockerConfigJsonKey])
	}
	return pods, r.contentsHash(values)
}
