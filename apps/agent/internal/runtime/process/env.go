package process

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// passed has the agent's variables that an instance gets: variables that every program of this host
// needs, and none of Windlass's own. An instance gets no other variable of the agent.
var passed = map[string]string{
	"PATH":   "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"HOME":   "/",
	"LANG":   "C.UTF-8",
	"TZ":     "",
	"TMPDIR": "",

	"USER": "", "LOGNAME": "", "XDG_CACHE_HOME": "",
}

// hostVariables returns a lookup of the agent's own variables. For an instance with its own user,
// it replaces the variables that say who the user is and where files are, because the agent's
// values would be wrong. Other instances get no USER, LOGNAME and XDG_CACHE_HOME.
func hostVariables(u *user, dir string) func(string) string {
	return func(name string) string {
		switch name {
		case "USER", "LOGNAME":
			if u != nil {
				return userName
			}
			return ""
		case "XDG_CACHE_HOME":
			if u != nil {
				return u.Cache
			}
			return ""
		case "HOME":
			if u != nil {
				return dir
			}
		case "TMPDIR":
			if u != nil {
				return "" // the instance has its own /tmp
			}
		}
		return variableOfAgent(name)
	}
}

// userName is the name of an instance's user, which has only a number.
const userName = "windlass"

// environmentFor returns the variables of an instance. In the case of equal names, the deployment's
// variables win over the host's, the role's over the deployment's, secrets over these, and
// Windlass's own variables over all others.
func environmentFor(d *agentv1.Deployment, ro runtime.Role, r *record, region string, secrets map[string]string, getenv func(string) string) map[string]string {
	env := map[string]string{}
	for name, fallback := range passed {
		v := getenv(name)
		if v == "" {
			v = fallback
		}
		if v != "" {
			env[name] = v
		}
	}
	maps.Copy(env, d.GetSpec().GetEnv())
	maps.Copy(env, ro.Env)
	maps.Copy(env, secrets)
	for i, p := range r.Ports {
		n := strconv.Itoa(p.Port)
		if i == 0 {
			env["PORT"] = n
		}
		env["PORT_"+strings.ToUpper(strings.ReplaceAll(p.Name, "-", "_"))] = n
	}
	if gpus := strings.Join(r.GPUs, ","); gpus != "" {
		env["CUDA_VISIBLE_DEVICES"], env["NVIDIA_VISIBLE_DEVICES"] = gpus, gpus
	} else {
		// An instance without GPUs must not see the GPUs of other instances.
		env["CUDA_VISIBLE_DEVICES"], env["NVIDIA_VISIBLE_DEVICES"] = "", "void"
	}
	env["WINDLASS_APP"] = d.GetAppName()
	env["WINDLASS_DEPLOYMENT_ID"] = d.GetId()
	env["WINDLASS_VERSION"] = strconv.Itoa(int(d.GetVersion()))
	env["WINDLASS_REGION"] = region
	env[instanceEnv] = r.ID
	env["WINDLASS_ROLE"] = r.Role
	env["WINDLASS_GROUP"] = strconv.Itoa(r.Group)
	env["WINDLASS_SLOT"] = strconv.Itoa(r.Slot)
	// This is the number at the instance's start, because scaling restarts no instance.
	env["WINDLASS_REPLICAS"] = strconv.Itoa(runtime.GroupsIn(d))
	return env
}

func envPairs(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out = append(out, k+"="+env[k])
	}
	return out
}

var reference = regexp.MustCompile(`\$\$\(|\$\(([A-Za-z_][A-Za-z0-9_]*)\)`)

// expandVariables replaces $(NAME) by the value of the variable NAME. $$( is a literal $(. $(NAME) stays
// unchanged if there is no such variable.
func expandVariables(arg string, env map[string]string) string {
	return reference.ReplaceAllStringFunc(arg, func(m string) string {
		if m == "$$(" {
			return "$("
		}
		if v, ok := env[m[2:len(m)-1]]; ok {
			return v
		}
		return m
	})
}

func variableOfAgent(name string) string { return os.Getenv(name) }
