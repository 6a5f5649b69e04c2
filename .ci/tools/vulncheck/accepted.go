package main

// accepted are vulnerabilities that govulncheck finds although they do not affect the code, with the reasons. If the
// database names no function of a package, govulncheck assumes that the whole package is called.
var accepted = map[string]string{
	"GO-2026-5264": notServed,
	"GO-2026-5381": notServed,
	"GO-2026-5662": notServed,
	"GO-2026-5710": notServed,
}

const notServed = "only the parser and the evaluator of Prometheus' queries are used: its server and its web UI are in no program"
