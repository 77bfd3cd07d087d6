module caravan/histories

go 1.19

// The judge of linearizability that Jepsen's peers use: A. Athalye, "Porcupine: A fast linearizability checker in Go".
require github.com/anishathalye/porcupine v1.3.1
