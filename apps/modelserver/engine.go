package modelserver

import (
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// engine is an inference engine whose command line, endpoints and metrics the server imitates. Each engine has a file
// engine_NAME.go, a function in metrics.go, and an entry in engines.
type engine struct {
	name string

	// program is the engine's name in its messages. usage is the line before a message.
	program, usage string
	// images are the repositories of the engine's images. entrypoint is the entrypoint of these images.
	images     []string
	entrypoint []string
	// match returns the words after the engine's program. ok is false for another program's command line.
	match func(words []string) (rest []string, ok bool)
	// flags are all flags of the engine. positionals is the maximum number of words without a flag.
	flags       []flag
	positionals int
	// rewrite changes the words before they are parsed. It may be nil.
	rewrite func(p *parser, words []string) ([]string, error)
	// configure sets cfg from the parsed arguments. cfg already has the values of MODELSERVER_*.
	configure func(p *parser, cfg *Config, args *arguments, own ownSettings) error

	// listensWhenLoaded means that connections are refused until the model is loaded.
	listensWhenLoaded bool
	// warmsUp means that health is 503 for some time after the server listens.
	warmsUp bool
	// acceptsUntilIdle means that requests are accepted after SIGTERM until none is left.
	acceptsUntilIdle bool
	// abrupt means that requests that are cut at the end of the drain get no error answer.
	abrupt bool
	// anyModel means that requests may name any model, or no model.
	anyModel bool
	// statusQueueFull is the HTTP status of the answer when the queue is full.
	statusQueueFull int
	// ownedBy is the field owned_by in the list of models.
	ownedBy string

	// guards reports whether a path needs one of the API keys.
	guards func(path string) bool
	// errorBody returns the body of an answer with an error.
	errorBody func(*apiError) any
	// routes adds the endpoints that the other engines do not have, including health.
	routes func(s *Server, route func(method, path string, handle http.HandlerFunc))
	// metrics creates the recorder and the registry of the engine.
	metrics func(m measured) (recorder, *prometheus.Registry)
}

// engines are all engines. The first engine is the default.
var engines = []*engine{&echo, &vllm, &sglang}

func engineNamed(name string) *engine {
	for _, e := range engines {
		if e.name == name {
			return e
		}
	}
	return nil
}

// ownSettings are the settings from the environment.
type ownSettings struct {
	// given has the modelserver's own flags that a variable MODELSERVER_* sets.
	given  map[string]bool
	lookup func(name string) (value string, ok bool)
}

// shellExec is the end of a shell script that runs the command line after it, as presets for several hosts do.
const shellExec = `exec "$0" "$@"`

// engineOf returns the engine of a command line, and the words after its program. It returns nil for another
// program's command line. It skips a shell that runs the engine; flags that its script adds are not read.
func engineOf(words []string) (*engine, []string) {
	if len(words) > 3 && path.Base(words[0]) == "sh" && words[1] == "-c" && strings.HasSuffix(words[2], shellExec) {
		words = words[3:]
	}
	for _, e := range engines {
		if e.match == nil {
			continue
		}
		if rest, ok := e.match(words); ok {
			return e, rest
		}
	}
	return nil, nil
}

// IsEngineCommand reports whether words are the command line of an engine, such as vllm serve MODEL.
func IsEngineCommand(words []string) bool {
	e, _ := engineOf(words)
	return e != nil
}

// ImageEntrypoint returns the entrypoint of an engine's published image, or nil for other images.
func ImageEntrypoint(image string) []string {
	repository, _, _ := strings.Cut(image, "@")
	if colon := strings.LastIndexByte(repository, ':'); colon > strings.LastIndexByte(repository, '/') {
		repository = repository[:colon]
	}
	for _, e := range engines {
		for _, known := range e.images {
			if repository == known || strings.HasSuffix(repository, "/"+known) {
				return slices.Clone(e.entrypoint)
			}
		}
	}
	return nil
}

// pythonModule returns the words after python -m MODULE.
func pythonModule(words []string, module string) ([]string, bool) {
	if len(words) >= 3 && strings.HasPrefix(path.Base(words[0]), "python") && words[1] == "-m" && words[2] == module {
		return words[3:], true
	}
	return nil, false
}

// parseFlags parses the words after the engine's program into cfg.
func (e *engine) parseFlags(cfg *Config, words []string, own ownSettings) error {
	p := newParser(e)
	if e.rewrite != nil {
		var err error
		if words, err = e.rewrite(p, words); err != nil {
			return err
		}
	}
	args, err := p.parseWords(words)
	if err != nil {
		return err
	}
	if args.hasKey("--config") {
		return &CommandLineError{Message: p.program + ": error: modelserver reads no file of flags: give them on the command line instead of --config", Code: 1}
	}
	cfg.Engine.Name = e.name
	return e.configure(p, cfg, args, own)
}

// measured has what the metrics of an engine read.
type measured struct {
	cfg   *Config
	queue *admission
	cache *cache
}

// runningRequests returns the number of requests that hold a slot.
func (m measured) runningRequests() float64 {
	n, _ := m.queue.countRequests()
	return float64(n)
}

// waitingRequests returns the number of requests that wait for a slot.
func (m measured) waitingRequests() float64 {
	_, n := m.queue.countRequests()
	return float64(n)
}

// recorder counts events of the server in metrics with an engine's names. Its methods are safe for concurrent use.
type recorder interface {
	// recordAdmission counts a request that got a slot after waiting for it.
	recordAdmission(waited time.Duration)
	// recordPrefill counts the tokens of a request's prompt.
	recordPrefill(tokens int)
	// recordToken counts a request's token number n, from 0. total is the time since the request arrived.
	// since is the time since the previous token.
	recordToken(n int, total, since time.Duration)
	// recordEnd counts a request that held a slot and has ended.
	recordEnd(request)
	// recordStatus counts the HTTP status of an inference request.
	recordStatus(path string, status int)
}

// request has the numbers of a request that held a slot.
type request struct {
	finish                       string
	prompt, generated, limit     int
	total, queued, first, decode time.Duration
}
