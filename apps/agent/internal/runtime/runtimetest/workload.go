package runtimetest

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// These variables make the test binary a workload, or a faulty workload.
const (
	workloadEnv = "WINDLASS_TEST_WORKLOAD"
	// FaultEnv is the variable with one of the faults below.
	FaultEnv = "WINDLASS_TEST_FAULT"

	FaultNeverReady = "never-ready" // answers its health check with 503
	FaultExit       = "exit"        // prints LastWords and exits with ExitCode at once
	FaultLeak       = "leak"        // prints its API_KEY, also in base64
	FaultIgnoreTerm = "ignore-term" // only SIGKILL ends it
	FaultPortBlind  = "port-blind"  // runs, and listens on no port

	// ExitCode is the exit code of FaultExit.
	ExitCode = 17
	// LastWords is the last line of output of FaultExit.
	LastWords = "cannot load the model: no such tensor"
	// LeakWords are printed before the values of FaultLeak.
	LeakWords = "started with key "
	// TermWords are printed on SIGTERM.
	TermWords = "told to stop"
)

// Main is the body of TestMain. It runs the workload if this process was started as one,
// otherwise the tests.
func Main(m *testing.M) int {
	if os.Getenv(workloadEnv) != "" {
		exitWorkload(serveWorkload())
	}
	return m.Run()
}

// burnProcessor uses a tenth of a processor.
func burnProcessor() {
	for {
		for end := time.Now().Add(5 * time.Millisecond); time.Now().Before(end); {
			runtime.Gosched()
		}
		time.Sleep(45 * time.Millisecond)
	}
}

// exitWorkload ends a workload. Unlike os.Exit, it does not wait for the second that the race detector adds
// to the end of a process. The second would delay every stop and crash of an instance.
func exitWorkload(code int) { syscall.Exit(code) }

// serveWorkload is a small server for tests:
//
//	GET  /health         200, or 503 after /sick
//	GET  /env?name=X     the value of X in its environment
//	GET  /pid            its pid
//	GET  /file?env=X     the content of the file that X in its environment names
//	GET  /args           its arguments, one per line
//	GET  /kept           what an instance stored in the directory of the slot
//	POST /keep?text=X    stores X in the directory of the slot
//	POST /sick, /well    what /health answers from now on
//	POST /busy           uses a part of a processor from now on
//	POST /exit?code=N    exits
func serveWorkload() int {
	fault := os.Getenv(FaultEnv)
	fmt.Println("workload starts, pid", os.Getpid())
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)

	if fault == FaultExit {
		fmt.Fprintln(os.Stderr, LastWords)
		return ExitCode
	}
	if fault == FaultLeak {
		key := os.Getenv("API_KEY")
		fmt.Println(LeakWords+key, base64.StdEncoding.EncodeToString([]byte(key)))
	}
	var sick atomic.Bool
	sick.Store(fault == FaultNeverReady)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if sick.Load() {
			http.Error(w, "sick", http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /env", func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, os.Getenv(r.FormValue("name")))
	})
	mux.HandleFunc("GET /file", func(w http.ResponseWriter, r *http.Request) {
		content, err := os.ReadFile(os.Getenv(r.FormValue("env")))
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		_, _ = w.Write(content)
	})
	mux.HandleFunc("GET /pid", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, os.Getpid()) })
	mux.HandleFunc("GET /args", func(w http.ResponseWriter, _ *http.Request) {
		for _, a := range os.Args[1:] {
			_, _ = fmt.Fprintln(w, a)
		}
	})
	kept := filepath.Join(os.Getenv("WINDLASS_SLOT_DIR"), "kept")
	mux.HandleFunc("GET /kept", func(w http.ResponseWriter, _ *http.Request) {
		content, _ := os.ReadFile(kept) // there is none in a new slot
		_, _ = w.Write(content)
	})
	mux.HandleFunc("POST /keep", func(w http.ResponseWriter, r *http.Request) {
		if err := os.WriteFile(kept, []byte(r.FormValue("text")), 0o600); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("POST /sick", func(http.ResponseWriter, *http.Request) { sick.Store(true) })
	mux.HandleFunc("POST /well", func(http.ResponseWriter, *http.Request) { sick.Store(false) })
	mux.HandleFunc("POST /busy", func(http.ResponseWriter, *http.Request) { go burnProcessor() })
	mux.HandleFunc("POST /exit", func(_ http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.FormValue("code"))
		exitWorkload(code)
	})
	if fault != FaultPortBlind {
		// On a platform where instances have their own addresses, an instance gets its address in
		// this variable.
		host := cmp.Or(os.Getenv("WINDLASS_POD_IP"), "127.0.0.1")
		srv := &http.Server{Addr: net.JoinHostPort(host, os.Getenv("PORT")), Handler: mux, ReadHeaderTimeout: 10 * time.Second}
		go func() {
			fmt.Println(srv.ListenAndServe())
			exitWorkload(1)
		}()
	}
	for range term {
		fmt.Println(TermWords)
		if fault != FaultIgnoreTerm {
			return 0
		}
	}
	return 0
}
