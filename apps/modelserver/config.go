package modelserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"regexp"
	"time"
)

// Config configures a Server. The zero value is a server that answers at full speed on a free port of the
// loopback address. A field's comment names its default, unless the default is zero. The tags are for the command
// line.
type Config struct {
	// Host is the address to bind. Default: 127.0.0.1.
	Host string `default:"127.0.0.1" help:"Address to listen on (0.0.0.0 in a container)."`
	// Port is the port to bind. 0 means any free port.
	Port int `default:"8000" env:"MODELSERVER_PORT,PORT" help:"Port to listen on."`
	// Listener replaces Host and Port if it is set. Run closes it.
	Listener net.Listener `kong:"-"`
	// Listen creates the listener when the server begins to listen. Some engines begin only when the model is
	// loaded. Default: Listener, or Host and Port.
	Listen func(ctx context.Context) (net.Listener, error) `kong:"-"`

	// Model is the name of the model in requests. Default: echo.
	Model string `default:"echo" help:"Name of the served model. Every model repeats the prompt's words."`
	// VersionLabel distinguishes versions. It is sent as X-Model-Version and as system_fingerprint. Default:
	// dev.
	VersionLabel string `default:"dev" help:"Label of this version, which answers contain."`
	// MaxModelLen is the maximum number of prompt tokens plus generated tokens. Default: 32768.
	MaxModelLen int `default:"32768" help:"Maximum length of a prompt with its answer, in tokens."`

	// LoadTime is the time until the model is loaded.
	LoadTime time.Duration `default:"0s" help:"Time that loading the model takes. Until then health is 503. With the command line of vLLM or SGLang, connections are refused."`
	// WarmUpTime is the time from the end of loading until the server is healthy, for engines that warm up.
	WarmUpTime time.Duration `default:"0s" help:"Time from listening until the server is healthy, for SGLang's command line."`
	// EngineVersion is the reported version, which also selects names of metrics. Default: the newest.
	EngineVersion string `help:"Version of the engine that the server imitates. The server reports this version and has its metrics. Default: the newest."`
	// TimeToFirstToken is the time from a request's slot to its first token.
	TimeToFirstToken time.Duration `default:"20ms" help:"Time from a free slot to the first token."`
	// TokenRate is the number of tokens per second of one request, after its first token. 0 means no pacing.
	TokenRate float64 `default:"50" help:"Tokens per second of one request; 0 for no pacing."`
	// Concurrency is the maximum number of requests that generate at once. Default: 8.
	Concurrency int `default:"8" help:"Requests that run at once."`
	// Queue is the maximum number of requests that wait for a slot.
	Queue int `default:"64" help:"Requests that may wait. Further requests are refused with 429."`
	// KVCacheTokens is the size of the KV cache, for the metric of its usage. Default: 131072.
	KVCacheTokens int `default:"131072" help:"Size of the KV cache in tokens. Only the metric of its usage needs it."`
	// MaxBodyBytes is the maximum size of a request's body. Default: 4 MiB.
	MaxBodyBytes int64 `default:"4194304" help:"Largest request body, in bytes."`
	// RequestTimeout limits a request from its headers to its last token. Default: 10 min.
	RequestTimeout time.Duration `default:"10m" help:"Maximum time of one request, including its wait."`
	// DrainDelay is how long the server still accepts requests after SIGTERM. It is unhealthy then, so that routers
	// can first stop sending requests.
	DrainDelay time.Duration `default:"0s" help:"Time after SIGTERM in which requests are still accepted while health is 503."`
	// DrainTimeout is the time after DrainDelay in which requests in flight may finish. Default: 30 s.
	DrainTimeout time.Duration `default:"30s" help:"Time for requests in flight to finish after SIGTERM."`
	// Seed makes IDs and injected errors repeatable. 0 means a random seed.
	Seed uint64 `default:"0" help:"Seed of IDs and injected errors; 0 for a random seed."`

	// Role is the role of the server in a group: prefill, decode or router; see roles.go. Empty means no role.
	Role string `help:"Role in a group of servers: prefill, decode or router. Default: the app's role, if it is one of these and --peers is set."`
	// Peers is the path of the file with the addresses of the group.
	Peers string `env:"WINDLASS_PEERS" help:"File with the addresses of the group's servers by role, as Windlass writes it."`
	// Group is the number of the group, which is sent with answers.
	Group string `env:"WINDLASS_GROUP" hidden:""`
	// AppRole is the role in the app.
	AppRole string `env:"WINDLASS_ROLE" hidden:""`

	// SlotDir is the directory that outlives the server, in which it counts its starts; see slot.go. Empty means none.
	SlotDir string `env:"WINDLASS_SLOT_DIR" hidden:""`

	// Hosts is the number of ranks of the server, each a process on a separate host; see ranks.go. 0 means 1. Rank is
	// the rank of this process. UnitEpoch is the epoch of all ranks.
	Hosts     int    `env:"WINDLASS_HOSTS" default:"0" hidden:""`
	Rank      int    `env:"WINDLASS_RANK" default:"0" hidden:""`
	UnitEpoch string `env:"WINDLASS_UNIT_EPOCH" hidden:""`
	// Leader is the address of rank 0, with or without a port.
	Leader string `env:"WINDLASS_LEADER" hidden:""`
	// RendezvousHost is the address at which rank 0 waits for the other ranks. Default: Host.
	RendezvousHost string `env:"WINDLASS_POD_IP" hidden:""`
	// RendezvousPort is the port at which rank 0 waits for the other ranks. Default: 29500.
	RendezvousPort int `default:"29500" help:"Port at which rank 0 of a server on several hosts waits for the other ranks."`
	// RendezvousTimeout is how long ranks wait for each other before they exit. Default: 10 min.
	RendezvousTimeout time.Duration `default:"10m" help:"Time within which the ranks of a server on several hosts must meet. Otherwise they exit."`

	// ModelRepository is the folder of the models that are loaded and unloaded by the Open Inference Protocol.
	// Empty means that the server does not have this protocol.
	ModelRepository string `help:"Folder with a folder for each model, to load and unload models by the Open Inference Protocol."`
	// ModelMemoryMiB is the memory for loaded models and adapters. 0 means no limit.
	ModelMemoryMiB int `name:"model-memory-mib" default:"0" help:"Limit of the memory of loaded models and adapters, which the server really allocates; 0 for no limit."`
	// ModelLoadTime is the time that loading a model or an adapter takes.
	ModelLoadTime time.Duration `default:"0s" help:"Time that loading a model of the repository or an adapter takes."`
	// AdapterSlots is the maximum number of loaded adapters. 0 means that the server loads no adapters.
	AdapterSlots int `default:"0" help:"Adapters that may be loaded at once by vLLM's calls; 0 for none."`
	// AdapterMemoryMiB is the memory of an adapter whose path is not on this host.
	AdapterMemoryMiB int `name:"adapter-memory-mib" default:"0" help:"Memory of an adapter whose path is not a folder on this host. An adapter in a folder needs the size of its files."`

	// Engine has settings that only the command lines of vLLM and SGLang have.
	Engine EngineConfig `kong:"-"`

	// Faults are the faults to start with.
	Faults Faults `embed:"" prefix:"fault-"`
	// AllowFaultAPI serves /faults. Clients need no key for it, except on an SGLang server with APIKeys.
	AllowFaultAPI bool `help:"Serve /faults, where faults are read (GET), changed (POST) and cleared (DELETE)."`

	// LogFormat is the format of NewLogger, text or json. Default: text.
	LogFormat string `default:"text" enum:"text,json" help:"Format of the log on standard error: ${enum}."`
	// Logger receives the server's log. Nil discards it.
	Logger *slog.Logger `kong:"-"`
}

// EngineConfig has the settings of an engine's command line that the program's own command line does not
// have.
type EngineConfig struct {
	// Name is the engine that the server imitates: echo, vllm or sglang. Default: echo.
	Name string
	// ModelPath is the path from which the real engine would load the model.
	ModelPath string
	// Aliases are other names of the model.
	Aliases []string
	// APIKeys are the accepted keys. Empty means that requests need no key.
	APIKeys []string
	// RootPath is the path under which a proxy serves the engine.
	RootPath string
	// CertFile and KeyFile are set for HTTPS.
	CertFile, KeyFile string
	// NoMetrics turns the engine's metrics off.
	NoMetrics bool
	// CountLoad makes vLLM's /load count requests.
	CountLoad bool
	// Tensor, Pipeline and Data are the sizes of the engine's parallelism. Default: 1.
	Tensor, Pipeline, Data int
	// Memory is the share of a GPU's memory. 0 means the engine's default.
	Memory float64
	// Role is the engine's role in disaggregated serving, in the engine's words. It may be empty.
	Role string
	// KVTransfer configures how vLLM transfers the KV cache of prompts.
	KVTransfer KVTransfer
	// Bootstrap configures how prefill and decode servers of SGLang meet.
	Bootstrap Bootstrap
	// Arguments is the command line by flag, for endpoints that show it.
	Arguments map[string][]string
}

// ListensWhenLoaded reports whether the engine refuses connections until the model is loaded.
func (c Config) ListensWhenLoaded() bool {
	e := engineNamed(c.withDefaults().Engine.Name)
	return e != nil && e.listensWhenLoaded
}

func (c Config) withDefaults() Config {
	c.Engine.Name = cmp.Or(c.Engine.Name, echo.name)
	c.Engine.Tensor = cmp.Or(c.Engine.Tensor, 1)
	c.Engine.Pipeline = cmp.Or(c.Engine.Pipeline, 1)
	c.Engine.Data = cmp.Or(c.Engine.Data, 1)
	c.Host = cmp.Or(c.Host, "127.0.0.1")
	c.Model = cmp.Or(c.Model, "echo")
	c.VersionLabel = cmp.Or(c.VersionLabel, "dev")
	c.MaxModelLen = cmp.Or(c.MaxModelLen, 32768)
	c.Concurrency = cmp.Or(c.Concurrency, 8)
	c.KVCacheTokens = cmp.Or(c.KVCacheTokens, 131072)
	c.MaxBodyBytes = cmp.Or(c.MaxBodyBytes, 4<<20)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, 10*time.Minute)
	c.LogFormat = cmp.Or(c.LogFormat, "text")
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 30*time.Second)
	c.RendezvousPort = cmp.Or(c.RendezvousPort, 29500)
	c.RendezvousTimeout = cmp.Or(c.RendezvousTimeout, 10*time.Minute)
	c.Faults = c.Faults.withDefaults()
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// NewLogger returns a logger for the field Logger.
func (c Config) NewLogger(w io.Writer) *slog.Logger {
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, nil))
	}
	return slog.New(slog.NewTextHandler(w, nil))
}

// Validate returns an error for every field that is out of range, with the name of its flag. Kong calls it for the
// command line, and New calls it for all other callers.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(c.Port < 0 || c.Port > 65535, "--port must be 0 to 65535, not %d", c.Port)
	refuse(!headerSafe(c.VersionLabel), "--version-label must be printable ASCII of at most 128 characters")
	refuse(c.MaxModelLen < 1, "--max-model-len must be at least 1, not %d", c.MaxModelLen)
	refuse(c.LoadTime < 0, "--load-time must not be negative")
	refuse(c.WarmUpTime < 0, "--warm-up-time must not be negative")
	refuse(engineNamed(c.Engine.Name) == nil, "there is no engine %q", c.Engine.Name)
	refuse(c.EngineVersion != "" && !versionForm.MatchString(c.EngineVersion), "--engine-version must be like 0.11.0, not %q", c.EngineVersion)
	refuse(c.TimeToFirstToken < 0, "--time-to-first-token must not be negative")
	// A rate below one token in 1,000 seconds is a typing error, and its interval could overflow a Duration.
	refuse(c.TokenRate != 0 && !(c.TokenRate >= 0.001 && c.TokenRate <= 1e6), "--token-rate must be 0 or between 0.001 and 1000000, not %g", c.TokenRate)
	refuse(c.Concurrency < 1, "--concurrency must be at least 1, not %d", c.Concurrency)
	refuse(c.Queue < 0, "--queue must not be negative, not %d", c.Queue)
	refuse(c.KVCacheTokens < 1, "--kv-cache-tokens must be at least 1, not %d", c.KVCacheTokens)
	refuse(c.MaxBodyBytes < 1, "--max-body-bytes must be at least 1, not %d", c.MaxBodyBytes)
	refuse(c.RequestTimeout < 0, "--request-timeout must not be negative")
	refuse(c.DrainDelay < 0, "--drain-delay must not be negative")
	refuse(c.DrainTimeout < 0, "--drain-timeout must not be negative")
	refuse(c.ModelMemoryMiB < 0 || c.ModelMemoryMiB > maxMemoryMiB, "--model-memory-mib must be 0 to %d, not %d", maxMemoryMiB, c.ModelMemoryMiB)
	refuse(c.ModelLoadTime < 0, "--model-load-time must not be negative")
	refuse(c.AdapterSlots < 0, "--adapter-slots must not be negative, not %d", c.AdapterSlots)
	refuse(c.AdapterMemoryMiB < 0 || c.AdapterMemoryMiB > maxMemoryMiB, "--adapter-memory-mib must be 0 to %d, not %d", maxMemoryMiB, c.AdapterMemoryMiB)
	refuse(c.LogFormat != "text" && c.LogFormat != "json", "--log-format must be text or json, not %q", c.LogFormat)
	if err := c.Faults.validate(); err != nil {
		errs = append(errs, err)
	}
	if err := c.validatePart(); err != nil {
		errs = append(errs, err)
	}
	if err := c.validateRanks(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

var versionForm = regexp.MustCompile(`^v?\d+\.\d+(\.\w+)*$`)

func headerSafe(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return len(s) <= 128
}
