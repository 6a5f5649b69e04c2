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

// Config says what to serve and how. The zero value is a server that answers at
// full speed on a free port of the loopback address; where a zero stands for
// something else, the field says so. The tags are the command line's.
type Config struct {
	// Host is the address to bind; empty: 127.0.0.1.
	Host string `default:"127.0.0.1" help:"Address to listen on (0.0.0.0 in a container)."`
	// Port to bind; 0: any free one.
	Port int `default:"8000" env:"MODELSERVER_PORT,PORT" help:"Port to listen on."`
	// Listener is served instead of Host and Port when it is set. Run closes it.
	Listener net.Listener `kong:"-"`
	// Listen makes the listener when the server is to listen, for engines that do
	// so when the model is loaded; nil: Listener, or Host and Port.
	Listen func(ctx context.Context) (net.Listener, error) `kong:"-"`

	// Model is the name under which requests find the model; empty: echo.
	Model string `default:"echo" help:"Name of the served model. Whatever its name, it repeats the prompt's words."`
	// VersionLabel tells versions apart: it is sent as X-Model-Version and as
	// system_fingerprint. Empty: dev.
	VersionLabel string `default:"dev" help:"Label that answers carry, so that one sees which version answered."`
	// MaxModelLen bounds prompt plus generated tokens; 0: 32768.
	MaxModelLen int `default:"32768" help:"Longest prompt plus answer, in tokens."`

	// LoadTime passes before the server is healthy.
	LoadTime time.Duration `default:"0s" help:"Time that loading the model takes. Until then health is 503, or connections are refused as vLLM and SGLang do."`
	// WarmUpTime passes after that, for engines that listen before they are healthy.
	WarmUpTime time.Duration `default:"0s" help:"Time from listening to being healthy, of SGLang's command line."`
	// EngineVersion chooses between names of metrics; empty: the newest.
	EngineVersion string `help:"Version of the engine whose command line is used: it says so, and has that version's metrics. Default: the newest."`
	// TimeToFirstToken passes between a request's slot and its first token.
	TimeToFirstToken time.Duration `default:"20ms" help:"Time from a free slot to the first token."`
	// TokenRate is tokens per second and request after the first; 0: no pacing.
	TokenRate float64 `default:"50" help:"Tokens per second of one request; 0 for no pacing."`
	// Concurrency is the number of requests that generate at once; 0: 8.
	Concurrency int `default:"8" help:"Requests that run at once."`
	// Queue is the number of requests that may wait for a slot; 0: none.
	Queue int `default:"64" help:"Requests that may wait; more are refused with 429."`
	// KVCacheTokens is the size of the cache that the metric of its usage is a
	// share of; 0: 131072.
	KVCacheTokens int `default:"131072" help:"Tokens that fit the KV cache; only its usage metric reads it."`
	// MaxBodyBytes bounds a request's body; 0: 4 MiB.
	MaxBodyBytes int64 `default:"4194304" help:"Largest request body, in bytes."`
	// RequestTimeout bounds a request from its headers to its last token; 0: 10 min.
	RequestTimeout time.Duration `default:"10m" help:"Longest life of one request, queueing included."`
	// DrainDelay is how long the server goes on accepting after SIGTERM, already
	// unhealthy, so that routers can turn away first.
	DrainDelay time.Duration `default:"0s" help:"Time after SIGTERM in which requests are still accepted while health is 503."`
	// DrainTimeout is how long requests in flight get after that; 0: 30 s.
	DrainTimeout time.Duration `default:"30s" help:"Time that requests in flight get to finish after SIGTERM."`
	// Seed makes ids and injected errors repeatable; 0: random.
	Seed uint64 `default:"0" help:"Seed of ids and injected errors; 0 for a random one."`

	// Engine is what only the command lines of vLLM and SGLang say.
	Engine EngineConfig `kong:"-"`

	// Faults are the faults to start with.
	Faults Faults `embed:"" prefix:"fault-"`
	// AllowFaultAPI serves /faults, which anyone who reaches the port may use.
	AllowFaultAPI bool `help:"Serve /faults, where faults are read (GET), changed (POST) and cleared (DELETE)."`

	// LogFormat is text or json, for NewLogger; empty: text.
	LogFormat string `default:"text" enum:"text,json" help:"Form of the log on standard error: ${enum}."`
	// Logger receives the server's log; nil: discarded.
	Logger *slog.Logger `kong:"-"`
}

// EngineConfig is what the command line of an engine says and the program's own does not.
// The zero value is the program itself.
type EngineConfig struct {
	// Name is the engine whose endpoints and metrics the server has: echo, vllm or
	// sglang; empty: echo.
	Name string
	// ModelPath is where the model would be loaded from.
	ModelPath string
	// Aliases are further names of the model.
	Aliases []string
	// APIKeys: requests need one of them; empty: none.
	APIKeys []string
	// RootPath is the path under which a proxy serves the engine.
	RootPath string
	// CertFile and KeyFile make it HTTPS.
	CertFile, KeyFile string
	// NoMetrics: the engine shows none.
	NoMetrics bool
	// CountLoad: vLLM's /load counts requests.
	CountLoad bool
	// Tensor, Pipeline and Data are the sizes of its parallelism; 0: 1.
	Tensor, Pipeline, Data int
	// Memory is the share of a GPU's memory; 0: the engine's default.
	Memory float64
	// Role is its part in disaggregated serving, in the engine's words; empty: none.
	Role string
	// KVTransfer is how it hands on the KV cache of prompts.
	KVTransfer KVTransfer
	// Bootstrap is how prefill and decode servers of SGLang meet.
	Bootstrap Bootstrap
	// Arguments is the command line by flag, for those endpoints that show it.
	Arguments map[string][]string
}

// ListensWhenLoaded reports whether connections are refused until the model is
// loaded, as the engine does it.
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
	c.Faults = c.Faults.withDefaults()
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// NewLogger makes the logger that a program gives to Logger.
func (c Config) NewLogger(w io.Writer) *slog.Logger {
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, nil))
	}
	return slog.New(slog.NewTextHandler(w, nil))
}

// Validate reports every field that is out of range, by the name of its flag.
// Kong calls it for the command line, New for everyone else.
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
	// A rate below one token in a thousand seconds is a typing error, and its
	// interval would come near the end of what a Duration holds.
	refuse(c.TokenRate != 0 && !(c.TokenRate >= 0.001 && c.TokenRate <= 1e6), "--token-rate must be 0 or between 0.001 and 1000000, not %g", c.TokenRate)
	refuse(c.Concurrency < 1, "--concurrency must be at least 1, not %d", c.Concurrency)
	refuse(c.Queue < 0, "--queue must not be negative, not %d", c.Queue)
	refuse(c.KVCacheTokens < 1, "--kv-cache-tokens must be at least 1, not %d", c.KVCacheTokens)
	refuse(c.MaxBodyBytes < 1, "--max-body-bytes must be at least 1, not %d", c.MaxBodyBytes)
	refuse(c.RequestTimeout < 0, "--request-timeout must not be negative")
	refuse(c.DrainDelay < 0, "--drain-delay must not be negative")
	refuse(c.DrainTimeout < 0, "--drain-timeout must not be negative")
	refuse(c.LogFormat != "text" && c.LogFormat != "json", "--log-format must be text or json, not %q", c.LogFormat)
	if err := c.Faults.validate(); err != nil {
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
