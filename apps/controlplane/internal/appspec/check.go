package appspec

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/pkg/healthcheck"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// maxEnvBytes is the limit on all names and values of a deployment's variables together. The kernel limits a
// program's environment, and every agent of the app's regions holds the variables in memory.
const maxEnvBytes = 256 << 10

// maxStringBytes is the limit of Linux on one argument or one variable (NAME=VALUE): MAX_ARG_STRLEN without the zero
// byte at the end.
const maxStringBytes = 128<<10 - 1

// Check validates the rules between fields, which the schema cannot express. The spec has its defaults; field
// paths begin with field.
func Check(s *windlassv1.DeploymentSpec, field string) error {
	if err := checkModels(s, field); err != nil {
		return err
	}
	if err := checkPorts(s, field); err != nil {
		return err
	}
	if err := CheckEnv(s.GetEnv(), field+".env"); err != nil {
		return err
	}
	if err := checkSecrets(s, field); err != nil {
		return err
	}
	if err := checkCommand(s.GetCommand(), s.GetArgs(), field); err != nil {
		return err
	}
	if err := checkResources(s.GetResources(), field+".resources"); err != nil {
		return err
	}
	if err := checkRoles(s, field); err != nil {
		return err
	}
	if err := checkKubernetes(s, field); err != nil {
		return err
	}
	if err := checkRouting(s.GetRouting(), field+".routing"); err != nil {
		return err
	}
	if err := checkOverrides(s, field+".overrides"); err != nil {
		return err
	}
	if err := checkHealth(s, field+".health_check"); err != nil {
		return err
	}
	if s.Replicas != nil && s.GetReplicas() > 0 && s.GetMinReady() > s.GetReplicas() {
		return apierr.Invalid(field+".minReady", fmt.Sprintf("minReady is %d, above replicas, which is %d", s.GetMinReady(), s.GetReplicas()))
	}
	return nil
}

func checkHealth(s *windlassv1.DeploymentSpec, field string) error {
	h := s.GetHealthCheck()
	if !slices.ContainsFunc(s.GetPorts(), func(p *windlassv1.Port) bool { return p.GetName() == h.GetPort() }) {
		return apierr.Invalid(field+".port", fmt.Sprintf("the health check names port %q, which is not among ports: %s",
			h.GetPort(), strings.Join(portNames(s), ", ")))
	}
	_, err := healthcheck.ParseCodes(h.GetExpectedCodes())
	if bad, ok := errors.AsType[*healthcheck.CodeError](err); ok {
		return apierr.InvalidFix(fmt.Sprintf("%s.expectedCodes[%d]", field, bad.Index), bad.Error(), "Write a code, such as 204, or a range, such as 200-299.")
	}
	return err
}

func checkCommand(command, args []string, field string) error {
	for i, c := range command {
		if c == "" || strings.ContainsRune(c, 0) {
			return apierr.Invalid(fmt.Sprintf("%s.command[%d]", field, i), "an element of a command must not be empty or contain a zero byte")
		}
		if err := checkArgLength(c, fmt.Sprintf("%s.command[%d]", field, i)); err != nil {
			return err
		}
	}
	for i, arg := range args {
		if strings.ContainsRune(arg, 0) {
			return apierr.Invalid(fmt.Sprintf("%s.args[%d]", field, i), "an argument must not contain a zero byte")
		}
		if err := checkArgLength(arg, fmt.Sprintf("%s.args[%d]", field, i)); err != nil {
			return err
		}
	}
	return nil
}

func checkArgLength(arg, field string) error {
	if len(arg) > maxStringBytes {
		return apierr.InvalidFix(field, fmt.Sprintf("the argument has %d bytes, but Linux allows at most %d", len(arg), maxStringBytes),
			"Put the value into a file that the program reads.")
	}
	return nil
}

func portNames(s *windlassv1.DeploymentSpec) []string {
	var names []string
	for _, p := range s.GetPorts() {
		names = append(names, p.GetName())
	}
	return names
}

func checkPorts(s *windlassv1.DeploymentSpec, field string) error {
	names, numbers := map[string]bool{}, map[int32]bool{}
	for i, p := range s.GetPorts() {
		at := fmt.Sprintf("%s.ports[%d]", field, i)
		if names[p.GetName()] {
			return apierr.Invalid(at+".name", fmt.Sprintf("port name %q is used twice", p.GetName()))
		}
		if p.GetPort() != 0 && numbers[p.GetPort()] {
			return apierr.Invalid(at+".port", fmt.Sprintf("port %d is used twice", p.GetPort()))
		}
		names[p.GetName()], numbers[p.GetPort()] = true, true
		variable := portVariable(p)
		if _, ok := s.GetEnv()[variable]; ok {
			return apierr.Invalid(fmt.Sprintf("%s.env[%q]", field, variable), fmt.Sprintf("variable %s is taken: Windlass sets it to the number of port %q", variable, p.GetName()))
		}
	}
	return nil
}

// portVariable returns the name of the variable that tells instances the port.
func portVariable(p *windlassv1.Port) string {
	return "PORT_" + strings.ToUpper(strings.ReplaceAll(p.GetName(), "-", "_"))
}

func checkSecrets(s *windlassv1.DeploymentSpec, field string) error {
	seen, pulls := map[string]bool{}, map[string]bool{}
	for i, r := range s.GetSecrets() {
		at := fmt.Sprintf("%s.secrets[%d]", field, i)
		if r.GetImagePull() {
			if pulls[r.GetSecret()] {
				return apierr.InvalidFix(at+".secret", fmt.Sprintf("secret %q is named twice for pulling the image", r.GetSecret()), "Remove one of the two entries.")
			}
			if !pullsImage(s) && s.GetModel().GetArtifact() == nil {
				return apierr.InvalidFix(at+".imagePull", "there is no image to pull", "Set image, or leave imagePull out.")
			}
			pulls[r.GetSecret()] = true
			continue
		}
		at += ".envName"
		if reservedVariable(r.GetEnvName()) {
			return apierr.Invalid(at, reservedError(r.GetEnvName()))
		}
		if seen[r.GetEnvName()] {
			return apierr.Invalid(at, fmt.Sprintf("variable %s is set by two secrets", r.GetEnvName()))
		}
		if _, ok := s.GetEnv()[r.GetEnvName()]; ok {
			return apierr.Invalid(at, fmt.Sprintf("variable %s is set in env and by a secret", r.GetEnvName()))
		}
		seen[r.GetEnvName()] = true
	}
	return nil
}

func pullsImage(s *windlassv1.DeploymentSpec) bool {
	return s.GetImage() != "" || slices.ContainsFunc(s.GetRoles(), func(r *windlassv1.RoleSpec) bool { return r.GetImage() != "" })
}

// CheckEnv validates variables of an app or an environment.
func CheckEnv(env map[string]string, field string) error {
	size := 0
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if reservedVariable(name) {
			return apierr.Invalid(fmt.Sprintf("%s[%q]", field, name), reservedError(name))
		}
		if strings.ContainsRune(env[name], 0) {
			return apierr.Invalid(fmt.Sprintf("%s[%q]", field, name), fmt.Sprintf("the value of %s contains a zero byte, which no variable can contain", name))
		}
		if n := len(name) + len("=") + len(env[name]); n > maxStringBytes {
			return apierr.InvalidFix(fmt.Sprintf("%s[%q]", field, name), fmt.Sprintf("variable %s takes %d bytes as NAME=VALUE, but Linux allows at most %d", name, n, maxStringBytes),
				"Put the value into a file that the program reads.")
		}
		size += len(name) + len(env[name])
	}
	return checkEnvSize(size, field)
}

func checkEnvSize(size int, field string) error {
	if size > maxEnvBytes {
		return apierr.Invalid(field, fmt.Sprintf("variables take %d bytes together, but at most %d are allowed: put large values into files", size, maxEnvBytes))
	}
	return nil
}

// reservedVariable reports whether Windlass sets the variable in every instance.
func reservedVariable(name string) bool {
	return name == "PORT" || strings.HasPrefix(name, "WINDLASS_")
}

func reservedError(name string) string {
	return fmt.Sprintf("variable %s is taken: Windlass sets PORT and names that begin with WINDLASS_", name)
}
