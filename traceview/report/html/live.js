// A page from `traceview serve` asks its own server for what it does not hold; a page from disk never asks anybody.
function liveMarks() {
  return null;
}

function askLive() {}
